"""Secure, robust aggregation for a Flower app that exists: a mod on the client, a strategy on the server.

    app = ClientApp(mods=[secure_mod])                                        # on every node
    strategy = SecureStrategy(FedAvg(), agreement="agreement.toml")           # on the server

docs/flower-apps.md converts an app step by step.
"""

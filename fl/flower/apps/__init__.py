"""Secure, robust aggregation for an existing Flower app: a mod on the client, a strategy on the server.

    app = ClientApp(mods=[secure_mod])                         # on every node
    strategy = SecureStrategy(FedAvg(), context.run_config)    # on the server; the configuration names the agreement

docs/flower-apps.md converts an app step by step.
"""

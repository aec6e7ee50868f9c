"""SHARE training on torch: data, local training, secure and robust rounds, records, reports."""

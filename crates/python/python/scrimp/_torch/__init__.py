"""What `scrimp.torch` is made of: capture, storages, costs, the problem, the rewritten graph."""

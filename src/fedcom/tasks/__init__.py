"""What is trained: clients' data, the model and its gradients."""

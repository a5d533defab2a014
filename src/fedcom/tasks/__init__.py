"""What is trained: clients' data, the model, its loss and its gradients."""

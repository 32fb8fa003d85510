"""Facts checked by running the model."""

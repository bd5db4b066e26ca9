"""keras_vit.Model: what makes `fit` right for any Keras model; knows no mask, box or text."""

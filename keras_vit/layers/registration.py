"""Keras' registry of classes, under the package's name: `.keras` files then load after `import keras_vit`."""

import keras

serializable = keras.saving.register_keras_serializable(package="keras_vit")

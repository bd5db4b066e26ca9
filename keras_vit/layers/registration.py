"""Registration under the package's name, so that `.keras` files reload after `import keras_vit`."""

import keras

serializable = keras.saving.register_keras_serializable(package="keras_vit")

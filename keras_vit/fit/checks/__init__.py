"""Refuses losses, labels and images that would train or evaluate wrongly; each check loads when first used."""

from keras_vit.io.lazy import attach

__getattr__ = attach(
    __name__,
    {
        "check_data check_known check_loaded check_readable check_trainable": "keras_vit.fit.checks.before_fit",
        "check_compiled what_is": "keras_vit.fit.checks.compiled",
        "InputChecks check_images": "keras_vit.fit.checks.inputs",
        "check_same_form label_shapes": "keras_vit.fit.checks.labels",
        "plain_errors": "keras_vit.fit.checks.marked",
        "checked checked_images warn_of_double": "keras_vit.fit.checks.pixels",
        "check_backups": "keras_vit.optim.wrappers",
    },
)

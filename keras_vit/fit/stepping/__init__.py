"""The steps of training, evaluation and prediction under every strategy; each part loads when first used."""

from keras_vit.io.lazy import attach

__getattr__ = attach(
    __name__,
    {
        "check_made_inside feed own_scope prediction_feed": "keras_vit.fit.stepping.feeding",
        "count_rows find_topology training_scope": "keras_vit.fit.stepping.feeding",
        "Remaining is_outdated": "keras_vit.fit.stepping.remaining",
        "check_kernels": "keras_vit.layers.quantization",
        "RunningLoss check_parts per_counted per_example per_value weights_kept": "keras_vit.fit.stepping.weighing",
        "activation_by are_per_example divides_by_weights sums_over_batch": "keras_vit.fit.losses",
        "accumulated_step after_update execute_in_one_program": "keras_vit.fit.stepping.jax_step",
        "ClassWeight": "keras_vit.fit.class_weight",
        "batches_taken innermost": "keras_vit.optim.wrappers",
        "move_averages": "keras_vit.optim.optimizers",
    },
)

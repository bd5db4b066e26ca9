"""The steps of training, evaluation and prediction: loss and metrics over batches, weights and replicas."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_vit.layers.dense import check_trainable
from keras_vit.optim.optimizers import move_averages
from keras_vit.optim.wrappers import batches_taken, innermost
from keras_vit.training.checks.pixels_in_graphs import checked
from keras_vit.training.losses import are_per_example, divides_by_weights, sums_over_batch
from keras_vit.training.mixing import check_unweighted
from keras_vit.training.model_metadata import DescribedModel
from keras_vit.training.steps.inputs import topology_of


def per_value(weights, outputs):
    """Weights (b,) for every output: (b,) for an output (b, c), (b, h, w) for (b, h, w, c), as Keras' losses need.

    Args:
        weights: None, one tensor for all outputs, or one each. Weights of another shape than (b,) stay.
        outputs: the model's output, or a structure of outputs.
    """
    if weights is None:
        return None

    def spread(weight, output):
        if weight is None or len(weight.shape) != 1 or len(output.shape) <= 2:
            return weight
        column = ops.reshape(weight, (-1, *[1] * (len(output.shape) - 2)))
        return ops.broadcast_to(column, ops.shape(output)[:-1])

    if not keras.tree.is_nested(weights):
        return keras.tree.map_structure(lambda output: spread(weights, output), outputs)
    each, flat = keras.tree.flatten(weights), keras.tree.flatten(outputs)
    if not keras.tree.is_nested(outputs) and len(each) == 1:
        return spread(each[0], outputs)
    if len(each) != len(flat):
        raise ValueError(
            f"There are sample weights for {len(each)} outputs, and the model has {len(flat)}. Give one for each, or"
            " None."
        )
    return keras.tree.pack_sequence_as(weights, [spread(weight, output) for weight, output in zip(each, flat)])


@contextlib.contextmanager
def weights_kept(model: keras.Model) -> Iterator[None]:
    """Gives a model its weights back after an error, such as one in its data.

    On JAX, Keras' loops take the values out of the variables, and put them back only at the end.
    """
    if keras.backend.backend() != "jax":
        yield
        return
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *model.metrics_variables, *(optimizer.variables if optimizer else ())]
    before = [variable.value for variable in variables]  # donated to the first step, and deleted by it
    try:
        yield
    except BaseException:
        model.jax_state_sync()
        for variable, value in zip(variables, before):
            if variable._value is None:
                variable._value = value
        model._jax_state = None
        raise


def check_parts(model) -> None:
    """Refuses (ValueError) a sum loss with regularizers over micro-batches, each of which would add them again."""
    if model.micro_batches > 1 and sums_over_batch(model.loss) and model.losses:
        raise ValueError(
            'With reduction="sum" and micro_batches, the model\'s regularizers would count once for every micro-batch.'
            " Use the default reduction, or the optimizer's weight_decay."
        )


def per_counted(weights):
    """A batch's weights, scaled so that a loss that Keras divides by their number is divided by the non-zero ones.

    Evaluation pads with weight 0: otherwise a half-padded batch would report half its loss.
    """

    def scaled(weight):
        if weight is None:
            return None
        weight = ops.cast(weight, "float32")
        return weight * (ops.cast(ops.size(weight), "float32") / ops.maximum(_counted(weight, "float32"), 1.0))

    return keras.tree.map_structure(scaled, weights, none_is_leaf=True)


def _counted(weight, dtype):
    """The number of non-zero weights, a scalar."""
    return ops.sum(ops.cast(weight != 0, dtype))


class RunningLoss(keras.metrics.Mean):
    """The loss of fit and evaluate: sum(weight * loss) over the number of examples with non-zero weight, so far.

    Attributes, set while a step is traced:
        weights: of the batch's examples; None where all count, or the loss is a sum.
        is_mean: whether the batch's losses are divided by the examples that count, rather than by all of them.
        by_weight: whether they are divided by the sum of the weights (reduction="mean_with_sample_weight").
    """

    weights = None
    is_mean = True
    by_weight = False

    def update_state(self, values, sample_weight=None):
        if self.weights is None:
            return super().update_state(values, sample_weight=sample_weight)
        weights = ops.cast(self.weights, self.dtype)
        if self.by_weight:
            return super().update_state(values, sample_weight=ops.sum(weights))
        counted = _counted(weights, self.dtype)
        if not self.is_mean:
            values = values * ops.divide_no_nan(ops.cast(ops.size(weights), self.dtype), counted)
        return super().update_state(values, sample_weight=counted)


def _tensorflow():
    """The TensorFlow part, imported on first use."""
    from keras_vit.training.steps import step_tensorflow

    return step_tensorflow


class SteppingModel(DescribedModel):
    """A model with this package's steps; its attributes are those of training.Model."""

    mixing: Any = None
    micro_batches: int = 1
    weighs_examples: bool = False
    _remaining = None
    _compiled_with: Any = None

    def has_own(self, *methods: str) -> bool:
        """Whether the user's class overrides one of these methods of training.Model."""
        raise NotImplementedError  # by training.Model

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Builds metrics and optimizer from the data's shapes; Keras would read a batch: several workers cannot."""
        if self._distribute_strategy is not None:
            _tensorflow().check_made_inside(self.optimizer, self._distribute_strategy)
        if iterator is not None:
            data_batch = _tensorflow().local_spec(iterator.data_adapter.get_tf_dataset().element_spec)
        if self._distribute_strategy is not None or data_batch is None:
            super()._maybe_symbolic_build(data_batch=data_batch)  # in the strategy's scope
        elif len(self.outputs) > 1:
            self._symbolic_build(data_batch=data_batch)  # makes each output's running loss
        else:
            self._build_metrics(data_batch)

    def _build_metrics(self, batch):
        """Makes the metrics' variables before tracing: a step that makes variables is traced twice, and keeps both."""
        _, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        metrics = self._compile_metrics
        if metrics is not None and not metrics.built and y is not None and not self.has_own("call", "compute_metrics"):
            metrics.build(y, self.measured(self.output))

    def make_train_function(self, force=False):
        check_trainable(self, topology_of(self).replicas)
        check_parts(self)
        self._count_examples()
        compiled_with, self._compiled_with = self._compiled_with, (self.mixing, self.micro_batches)
        force = force or compiled_with != self._compiled_with  # the function keeps the old ones
        self._average_updates()
        if keras.backend.backend() != "tensorflow":
            return super().make_train_function(force)
        if self.train_function is None or force:
            _tensorflow().check_optimizer(self.optimizer, self.distribute_strategy)
            own = self.has_own("train_step", "compute_metrics")
            if self.optimizer is not None and not self.has_own("train_step"):
                self.optimizer.build(self.trainable_variables)  # as in _build_metrics
            self.train_function = _tensorflow().make_function(self, self.train_step, lambda: self._remaining, own)
        return self.train_function

    def _average_updates(self):
        """Lets averages under gradient_accumulation_steps move once per update, also those of Keras' optimizers."""
        optimizer = innermost(self.optimizer) if self.optimizer is not None else None
        if optimizer is None or not (optimizer.use_ema and optimizer.gradient_accumulation_steps):
            return
        if optimizer.ema_overwrite_frequency:
            raise ValueError(
                "ema_overwrite_frequency counts batches, not updates, with gradient_accumulation_steps: set"
                " model.micro_batches instead of the latter, or leave ema_overwrite_frequency out."
            )
        optimizer._update_model_variables_moving_average = lambda _: move_averages(optimizer)

    def _make_function(self, step_function, concatenate_outputs=False):
        """Keras' loop over an execution's steps (on JAX a loop of the host); the last execution ends with the epoch."""
        if keras.backend.backend() == "tensorflow":
            return super()._make_function(step_function)
        execution = super()._make_function(step_function, concatenate_outputs)
        if self.steps_per_execution == 1 or concatenate_outputs:  # of predict, which ends with its data
            return execution
        return lambda state, batches: execution(state, itertools.islice(batches, self._remaining))

    def make_test_function(self, force=False):
        self._count_examples()
        if keras.backend.backend() != "tensorflow":
            return super().make_test_function(force)
        if self.test_function is None or force:
            own = self.has_own("test_step", "compute_metrics")
            self.test_function = _tensorflow().make_function(self, self.test_step, lambda: self._remaining, own)
        return self.test_function

    def make_predict_function(self, force=False):
        several = keras.backend.backend() == "tensorflow" and topology_of(self).workers > 1
        if not several:
            return super().make_predict_function(force)
        if self.predict_function is None or force:
            self.predict_function = _tensorflow().make_gathering_function(self, self.predict_step)
        return self.predict_function

    def get_metrics_result(self):
        """Keras' {name: metric}, also of metrics that have several numbers: {their names}, not a dict within."""
        flat = {}
        for name, value in super().get_metrics_result().items():
            flat.update(value if isinstance(value, dict) else {name: value})
        return flat

    def _get_metrics_result_or_logs(self, logs):
        """An epoch's report; Keras would report its own running loss, 0, if the user's step returns only "loss"."""
        if self.has_own("train_step", "test_step", "compute_metrics"):
            return logs
        return super()._get_metrics_result_or_logs(logs)

    def _count_examples(self):
        """Makes the running losses, total and per output, average over examples rather than batches."""
        for tracker in self._running_losses():
            if type(tracker) is keras.metrics.Mean:
                tracker.__class__ = RunningLoss  # made and registered by Keras

    def train_step(self, *args):
        """Arguments: (batch,); on the JAX backend (state, batch)."""
        if keras.backend.backend() == "tensorflow":
            with checked():
                return _tensorflow().train_step(self, *args)
        state, batch = args
        if self.mixing is not None:
            images, labels, *rest = batch
            check_unweighted(rest[0] if rest else None)
            batch = (*self.mixing(images, labels, batches_taken(self.optimizer, state[2])), *rest)
        if self.micro_batches > 1:
            from keras_vit.training.steps.step_jax import accumulated_step

            logs, state = accumulated_step(self, state, batch)
        else:
            with self.weighing(keras.utils.unpack_x_y_sample_weight(batch)[2], is_mean=False):
                logs, state = super().train_step(state, batch)
        if not self.has_own("after_update"):
            return logs, state
        from keras_vit.training.steps.step_jax import after_update

        return logs, after_update(self, state)

    def after_update(self) -> None:
        """Called in every training step after the optimizer's update; does nothing unless overridden.

        It may assign non-trainable variables, for example of a teacher that follows the trained weights; make these
        with `aggregation="only_first_replica"`, since every replica assigns the same. It runs where the step does: in a
        graph, in each replica, once for all micro-batches.
        """

    def test_step(self, *args):
        """Arguments: (batch,); on the JAX backend (state, batch)."""
        _, _, weights = keras.utils.unpack_x_y_sample_weight(args[-1])
        with self.weighing(weights, is_mean=True):
            return super().test_step(*args)

    @contextlib.contextmanager
    def weighing(self, weights: Any, is_mean: bool) -> Iterator[None]:
        """Passes the examples' weights to the running losses while a step is traced.

        Args:
            weights: one tensor, a structure with one per output, or None.
            is_mean: see RunningLoss.
        """
        total, *outputs = self._running_losses()
        each = [] if weights is None or sums_over_batch(self.loss) else keras.tree.flatten(weights)
        total.weights = each[0] if each and (is_mean or len(each) == 1) else None
        for i, tracker in enumerate(outputs):
            tracker.weights = None if not each else each[i] if len(each) == len(outputs) else each[0]
        for tracker in (total, *outputs):
            tracker.is_mean, tracker.by_weight = is_mean, divides_by_weights(self.loss)
        try:
            yield
        finally:
            for tracker in (total, *outputs):
                tracker.weights = None

    def _running_losses(self):
        """The metrics of the running loss: the total, and with several outputs one each."""
        return [self._loss_tracker, *getattr(self._compile_loss, "metrics", ())]

    def supervised(self, outputs: Any, y: Any = None) -> tuple[Any, list[tuple[float, Any]]]:
        """(outputs that the loss compares with y, [(weight, output)] for training, with `auxiliary_targets`).

        The first may depend on y: a detector can look at the true boxes, too. It is None for metrics.
        """
        return outputs, []

    def auxiliary_targets(self, y: Any) -> Any:
        """What training compares auxiliary outputs with: y."""
        return y

    def measured(self, outputs: Any) -> Any:
        """What metrics compare with y."""
        return self.supervised(outputs)[0]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Keras' loss, with example weights for outputs of any rank; evaluation ignores examples of weight 0."""
        y_pred, auxiliary = self.supervised(y_pred, y)
        one_each = self.weighs_examples or are_per_example(self.loss)
        weights = sample_weight if one_each else per_value(sample_weight, y_pred)
        if not training and weights is not None and not sums_over_batch(self.loss):
            weights = per_counted(weights)
        loss = super().compute_loss(x, y, y_pred, weights, training)
        for factor, output in auxiliary if training else ():
            loss = loss + factor * self._compile_loss(self.auxiliary_targets(y), output, weights)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Keras' metrics, with example weights for outputs of any rank."""
        y_pred = self.measured(y_pred)
        weights = sample_weight if self.weighs_examples else per_value(sample_weight, y_pred)
        return super().compute_metrics(x, y, y_pred, weights)

"""The start of every config. All keys are here with their defaults: an override of a key that is not here is
refused, except fields of `model`, options of evaluators in `evals`, and the task's own in `objective`.

Durations are whole numbers of steps, or text: "150 epochs", "10k steps", "1M examples", "5%" (of the whole run);
"3 epochs or 64 steps" is the longer of the two. Options that are off are None; on the command line
`--config.mixup=None` turns an option off.
"""

from ml_collections import ConfigDict, config_dict


def _off(value_type):
    """An option that is off, with values of that type."""
    return config_dict.placeholder(value_type)


def _duration(default):
    """A field that takes a number of steps as well as text."""
    return config_dict.FieldReference(default, field_type=object)


def _model():
    """Beside these keys `config.model` takes any field of keras_vit.ViTSpec, or for a BiT of keras_vit.BiTSpec."""
    model = ConfigDict({"image_size": 224, "channels": 3, "remat": False})
    model.variant = _off(str)  # such as Ti/16; None for that of the model in `init`, or B/16 with random weights
    return model


def _data():
    data = ConfigDict()
    data.source = "digits"  # digits, folder:, csv:, jsonl:, tfrecord:PATH, or a name of tensorflow-datasets
    data.train = "train"  # split to train on
    data.evaluation = "test"  # split to evaluate on
    data.dev_train = _off(str)  # split that the points of a sweep train on; None for data.train
    data.dev_evaluation = _off(str)  # split on which they are compared; None for data.evaluation
    data.train_preprocess = "decode|random_resized_crop(224)|random_flip"  # preprocessing text of training images
    data.eval_preprocess = "decode|resize(256)|central_crop(224)"  # preprocessing text of evaluation images
    data.shuffle_buffer = 10_000  # records, for sources that are read in order
    data.exclude = _off(str)  # a file of example names to leave out of training
    data.broken_limit = 100  # examples that cannot be read before a run stops
    data.cache = False  # keep encoded examples in memory
    data.deterministic = True
    return data


def _optimizer():
    optimizer = ConfigDict()
    optimizer.name = "adamw"  # adamw, momentum, radam or muon
    optimizer.learning_rate = 1e-3  # the highest, at the end of the warm-up
    optimizer.weight_decay = 0.1  # decoupled, of kernels
    optimizer.weight_decay_final = _off(float)  # reached by a cosine at the run's end
    optimizer.clip_norm = _off(float)  # of the global gradient; None to turn it off
    optimizer.clip_norm = 1.0
    optimizer.beta_2 = 0.999
    optimizer.momentum = 0.9  # of momentum and muon
    optimizer.layer_decay = _off(float)  # factor of the learning rate from one layer to the one below
    optimizer.head_rate = _off(float)  # factor of the learning rate after the blocks, such as 10 for a new dense head
    optimizer.ema = _off(float)  # momentum of averaged weights, such as .9999
    optimizer.swa = _duration(None)  # a duration, such as "75%", from which weights are averaged equally
    optimizer.lookahead = _off(int)  # steps between synchronisations with the slow weights, such as 5
    optimizer.lookahead_rate = 0.5  # step of the slow weights towards the trained ones
    return optimizer


def base():
    """The defaults: the paper's ViT-B/16, AdamW with a warm-up and cosine, softmax cross-entropy."""
    config = ConfigDict()
    config.task = "classification"  # a task, or your own: "package.module:Class", "path/to/file.py:Class"
    config.objective = ConfigDict()  # the task's own options
    config.seed = 0  # of weights, data order, augmentation and dropout
    config.model = _model()
    config.dtype = "float32"  # float32, mixed_bfloat16 or mixed_float16
    config.jit_compile = False  # XLA, always on JAX: small float32 models gain, large ones on CPU do not
    config.data = _data()

    config.batch_size = 512  # of all devices together
    # Parts of a device's batch, one after the other: less memory, the same step except in a conv_stem.
    config.micro_batches = 1
    config.steps_per_execution = 1  # steps per compiled call; use about 100 on a TPU
    config.total = _duration("100 epochs")  # length of the run
    config.evaluate = _duration("1 epochs")  # time between evaluations
    config.checkpoint = _duration("1 epochs")  # time between checkpoints
    config.keep = 2  # number of checkpoints to keep
    config.keep_best = False  # deliver the weights of the best evaluation, by the task's score, instead of the last
    config.early_stopping = _duration(None)  # without a better evaluation, such as "5 epochs", ends the run
    # Evaluators while training and at its end: evals.NAME = {"every": a duration, or None for the end only, options of
    # the evaluator}.
    config.evals = ConfigDict()

    config.optimizer = _optimizer()
    config.schedule = ConfigDict()
    config.schedule.decay = "cosine"  # cosine, linear, rsqrt, constant or staircase (a tenth at 30, 60 and 90%)
    config.schedule.warmup = _duration("5%")  # duration of the linear warm-up
    config.schedule.cooldown = _duration("0 steps")  # duration of the linear end of rsqrt

    config.loss = ConfigDict()
    config.loss.name = "softmax"  # softmax or sigmoid
    config.loss.label_smoothing = 0.0
    config.loss.class_weights = _off(str)  # balanced, or numbers: "1,2.5,1"
    config.mixup = _off(float)  # alpha of the beta distribution
    config.cutmix = _off(float)  # alpha of the beta distribution

    # Training images, such as 4096: the first layer begins with the principal components of their patches.
    config.whiten = _off(int)

    # Fine-tuning only: anything keras_vit.load accepts, such as a file, a run directory or a published name.
    config.init = _off(str)
    # Fine-tuning only: reset (zeros), keep, or probe: starts as a linear probe of the training images.
    config.head = "reset"
    # Fine-tuning and dino only: method for positions: google, timm, bicubic...; None for the checkpoint's own.
    config.resample = _off(str)
    config.freeze = _off(tuple)  # fine-tuning only: layer name patterns, such as ("patch_encoder", "block_0*")
    config.linear_probe = False  # fine-tuning only: train only the head
    config.quantization = _off(str)  # fine-tuning only: int8 trains with the rounding of an int8_static export

    config.expected = _off(str)  # the result that the recipe's source reports; only --dry_run reads it
    config.sweep = _off(str)  # what --sweep tries: "optimizer.learning_rate=0.01,0.03;model.dropout=0,0.1"
    config.picture = ConfigDict()  # of the sweep
    config.picture.x = _off(str)  # its x axis: training_examples, forward_flops, training_flops, or a key with numbers
    config.picture.lines = _off(tuple)  # the names of the sweep's parts
    config.sweep_final = True  # after a sweep, train its best point on data.train; False for a study
    return config

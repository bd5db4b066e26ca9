"""What every config starts from. All keys stand here with their defaults: an override of a key that does not is refused.

Durations are steps, or text: "150 epochs", "10k steps", "1M examples", "5%" (of the whole run).
"""

from ml_collections import ConfigDict, config_dict

# Fields of keras_vit.ViTSpec and BiTSpec that a config may set; unset ones keep the variant's value.
_SPEC = {
    int: "depth width mlp_dim heads head_dim registers pre_logits stem_width",
    float: "epsilon layer_scale dropout attention_dropout drop_path head_bias position_std width_factor",
    str: "positions pool gelu mlp_form patch_form",
    bool: "class_token distillation_token qkv_bias qk_norm fc_norm patch_norm",
    object: "patch_size mean std stem conv_stem conv_strides units",
}


def _model():
    spec = {name: config_dict.placeholder(kind) for kind, names in _SPEC.items() for name in names.split()}
    return ConfigDict({"variant": "B/16", "image_size": 224, "channels": 3, "remat": False, **spec})


def _data():
    data = ConfigDict()
    data.source = "digits"  # or folder:, csv:, jsonl:, tfrecord:PATH, or a tensorflow-datasets name
    data.train = "train"
    data.evaluation = "test"
    data.dev_train = ""  # a sweep's: what its points train on, and
    data.dev_evaluation = ""  # are compared on; "" for train and evaluation
    data.train_preprocess = "decode|random_resized_crop(224)|random_flip"
    data.eval_preprocess = "decode|resize(256)|central_crop(224)"
    data.shuffle_buffer = 10_000  # records, for sources that are read in order
    data.exclude = ""  # a file of example names to leave out of training
    data.broken_limit = 100  # broken examples that a run skips before it stops
    data.cache = False  # keep encoded examples in memory
    data.deterministic = True
    return data


def _optimizer():
    optimizer = ConfigDict()
    optimizer.name = "adamw"  # or momentum, radam
    optimizer.learning_rate = 1e-3
    optimizer.weight_decay = 0.1  # decoupled, of kernels
    optimizer.clip_norm = 1.0  # global; 0 for none
    optimizer.beta_2 = 0.999
    optimizer.momentum = 0.9
    optimizer.layer_decay = 0.0  # factor of the learning rate a layer; 0 for one rate
    optimizer.ema = 0.0  # momentum of averaged weights, such as .9999; 0 for none
    optimizer.swa = ""  # a duration, such as "75%", from which weights are averaged equally; "" for none
    optimizer.lookahead = 0  # steps between two looks ahead, such as 5; 0 for none
    optimizer.lookahead_rate = 0.5
    return optimizer


def _few_shot():
    few_shot = ConfigDict()
    few_shot.source = ""  # a linear probe on few images, while and after training: its data; "" for none
    few_shot.train = "train"
    few_shot.test = "test"
    few_shot.shots = "1,5,10,25"
    few_shot.every = ""  # a duration; "" for only at the end
    few_shot.preprocess = ""  # "" for the evaluation's
    return few_shot


def base():
    """The defaults: the paper's ViT-B/16, AdamW with a warm-up and cosine, softmax cross-entropy."""
    config = ConfigDict()
    config.seed = 0
    config.model = _model()
    config.dtype = "float32"  # or mixed_bfloat16, mixed_float16
    config.jit_compile = False  # XLA: small float32 models gain, large ones on CPU do not
    config.data = _data()

    config.batch_size = 512  # of all devices together
    config.micro_batches = 1  # parts of a device's batch, one after the other: less memory, the same step
    config.steps_per_execution = 1  # steps in one call; a TPU wants many (100)
    config.total = "100 epochs"
    config.evaluate = "1 epochs"  # how often
    config.checkpoint = "1 epochs"
    config.keep = 2  # checkpoints

    config.optimizer = _optimizer()
    config.schedule = ConfigDict()
    config.schedule.decay = "cosine"  # or linear, rsqrt, constant, staircase (a tenth at 30, 60 and 90%)
    config.schedule.warmup = "5%"
    config.schedule.cooldown = "0 steps"  # of rsqrt

    config.loss = ConfigDict()
    config.loss.name = "softmax"  # or sigmoid
    config.loss.label_smoothing = 0.0
    config.loss.class_weights = ""  # or balanced, or numbers: "1,2.5,1"
    config.mixup = 0.0  # alpha; 0 for none
    config.cutmix = 0.0  # alpha; 0 for none

    config.init = ""  # fine-tuning only, as what follows: what keras_vit.load takes: a file, a run directory, a published name
    config.head = "reset"  # or keep
    config.resample = ""  # of positions: google, timm, bicubic...; "" for what the checkpoint's own code does
    config.freeze = ()  # layer name patterns, such as ("patch_encoder", "block_0*")
    config.linear_probe = False  # all but the head frozen

    config.few_shot = _few_shot()
    config.expected = ""  # what the source of the recipe reports; nothing reads it but --dry_run
    config.sweep = ""  # what --sweep tries: "optimizer.learning_rate=0.01,0.03;model.dropout=0,0.1"
    return config

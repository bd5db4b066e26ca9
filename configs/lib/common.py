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
    object: "patch_size mean std stem units",
}


def _model():
    spec = {name: config_dict.placeholder(kind) for kind, names in _SPEC.items() for name in names.split()}
    return ConfigDict({"variant": "B/16", "image_size": 224, "channels": 3, "remat": False, **spec})


def base():
    """The defaults: the paper's ViT-B/16, AdamW with a warm-up and cosine, softmax cross-entropy."""
    config = ConfigDict()
    config.seed = 0
    config.model = _model()
    config.dtype = "float32"  # or mixed_bfloat16, mixed_float16
    config.jit_compile = False  # XLA: small float32 models gain, large ones on CPU do not

    config.data = ConfigDict()
    config.data.source = "digits"  # digits, folder:PATH, or a tensorflow-datasets name
    config.data.train = "train"
    config.data.evaluation = "test"
    config.data.train_preprocess = "decode|random_resized_crop(224)|random_flip"
    config.data.eval_preprocess = "decode|resize(256)|central_crop(224)"
    config.data.shuffle_buffer = 10_000  # records, for sources that are read in order

    config.batch_size = 512  # of all devices together
    config.micro_batches = 1  # parts of a device's batch, one after the other: less memory, the same step
    config.steps_per_execution = 1  # steps in one call; a TPU wants many (100)
    config.total = "100 epochs"
    config.evaluate = "1 epochs"  # how often
    config.checkpoint = "1 epochs"
    config.keep = 2  # checkpoints

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"  # or momentum
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.1  # decoupled, of kernels
    config.optimizer.clip_norm = 1.0  # global; 0 for none
    config.optimizer.beta_2 = 0.999
    config.optimizer.momentum = 0.9
    config.optimizer.layer_decay = 0.0  # factor of the learning rate a layer; 0 for one rate
    config.optimizer.ema = 0.0  # momentum of averaged weights, such as .9999; 0 for none

    config.schedule = ConfigDict()
    config.schedule.decay = "cosine"  # or linear, rsqrt, constant
    config.schedule.warmup = "5%"
    config.schedule.cooldown = "0 steps"  # of rsqrt

    config.loss = ConfigDict()
    config.loss.name = "softmax"  # or sigmoid
    config.loss.label_smoothing = 0.0
    config.loss.class_weights = ""  # or balanced, or numbers: "1,2.5,1"
    config.mixup = 0.0  # alpha; 0 for none

    config.init = ""  # fine-tuning only, as what follows: what keras_vit.load takes: a file, a run directory, a published name
    config.head = "reset"  # or keep
    config.resample = ""  # of positions: google, timm, bicubic...; "" for what the checkpoint's own code does
    config.freeze = ()  # layer name patterns, such as ("patch_encoder", "block_0*")
    config.linear_probe = False  # all but the head frozen
    return config

"""What trains in a trained model: freezing, LoRA, whitening, fake quantisation; each loads when first used."""

from keras_vit.io.lazy import attach

__getattr__ = attach(
    __name__,
    {
        "freeze freeze_all_but_head": "keras_vit.models.finetuning.freezing",
        "enable_lora freeze_all_but_lora merge_lora": "keras_vit.models.finetuning.lora",
        "quantize_aware without_fake_quantization": "keras_vit.models.finetuning.quantization_aware",
        "whiten": "keras_vit.models.finetuning.whitening",
    },
)

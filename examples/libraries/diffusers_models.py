"""diffusers: a pipeline whose UNet and VAE are compiled in place, and a diffusion transformer.

    python examples/libraries/diffusers_models.py

The pipeline is built from small random models; its text encoder is left out, and embeddings are given instead.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTTransformer2DModel, StableDiffusionPipeline, UNet2DConditionModel
from what_ran import print_what_ran


def pipeline() -> StableDiffusionPipeline:
    """Stable Diffusion with a UNet and a VAE of two small blocks."""
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=16,
    )
    scheduler = DDIMScheduler(num_train_timesteps=100, clip_sample=False, set_alpha_to_one=False)
    pipe = StableDiffusionPipeline(
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        unet=unet,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def images(pipe: StableDiffusionPipeline) -> torch.Tensor:
    """An image after three steps, shape [1, 16, 16, 3]."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randn(2, 1, 7, 16, generator=generator)
    return torch.from_numpy(
        pipe(
            prompt_embeds=words[0],
            negative_prompt_embeds=words[1],
            num_inference_steps=3,
            generator=generator,
            output_type="np",
        ).images
    )


@torch.no_grad()
def main() -> None:
    """Run in eager and compiled, and compare."""
    torch.manual_seed(0)
    pipe = pipeline()
    wanted = images(pipe)
    pipe.unet.compile(backend="max_backend", fullgraph=True)
    pipe.vae.decoder.compile(backend="max_backend", fullgraph=True)
    torch.testing.assert_close(images(pipe), wanted, rtol=1e-3, atol=1e-4)
    print("UNet and VAE in a pipeline: the same image")

    transformer = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, norm_num_groups=8
    ).eval()
    noise, step, label = torch.randn(2, 4, 8, 8), torch.tensor([3, 7]), torch.tensor([1, 2])
    wanted = transformer(noise, step, label).sample
    transformer.compile(backend="max_backend", fullgraph=True)
    torch.testing.assert_close(transformer(noise, step, label).sample, wanted, rtol=1e-4, atol=1e-5)
    print("diffusion transformer: the same")
    print_what_ran()


if __name__ == "__main__":
    main()

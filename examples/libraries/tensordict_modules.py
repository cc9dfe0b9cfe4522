"""tensordict and torchrl: a policy and a loss on TensorDicts, compiled with what reads and writes their entries.

python examples/libraries/tensordict_modules.py
"""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss
from what_ran import print_what_ran


def main() -> None:
    """Run and differentiate in eager and compiled, and compare."""
    torch.manual_seed(0)
    encoder = TensorDictModule(nn.Linear(8, 16), in_keys=["pixels"], out_keys=["hidden"])
    head = TensorDictModule(MLP(16, 4, num_cells=[32]), in_keys=["hidden"], out_keys=["logits"])
    policy = TensorDictSequential(encoder, head)
    seen = TensorDict({"pixels": torch.randn(5, 8)}, batch_size=[5])
    wanted = policy(seen.clone())
    given = torch.compile(policy, backend="max_backend")(seen.clone())
    torch.testing.assert_close(given["logits"], wanted["logits"], rtol=1e-4, atol=1e-5)
    assert set(given.keys()) == {"pixels", "hidden", "logits"}
    print("TensorDictSequential: the same")

    actor = QValueActor(MLP(8, 4, num_cells=[32]), in_keys=["observation"], action_space="one-hot")
    loss = DQNLoss(actor, action_space="one-hot", delay_value=False)
    action = nn.functional.one_hot(torch.randint(4, (6,)), 4)
    following = {"observation": torch.randn(6, 8), "reward": torch.randn(6, 1), "done": torch.zeros(6, 1).bool()}
    following["terminated"] = following["done"]
    step = TensorDict({"observation": torch.randn(6, 8), "action": action, "next": following}, batch_size=[6])

    def gradients(of: object) -> tuple[torch.Tensor, ...]:
        value = of(step.clone())["loss"]
        return value.detach(), *torch.autograd.grad(value, [p for p in loss.parameters() if p.requires_grad])

    wanted = gradients(loss)
    for mine, eager in zip(gradients(torch.compile(loss, backend="max_backend")), wanted):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
    print("DQN loss and its gradients: the same")
    print_what_ran()


if __name__ == "__main__":
    main()

"""The Python side of the TorchScript tests; runs in the environment that setup/test_python makes.

peer.py export STEPS FOLDER DTYPE [FOLDER DTYPE]...
    writes model.pt and data.pt, trains the model here, unsharded, and keeps what came of it in
    reference.pt
peer.py check FOLDER TOLERANCE [FOLDER TOLERANCE]...
    compares trained.pt and results.pt with it; prints a line for each folder, "equal" or what is not
"""

import sys
from pathlib import Path

import torch
from torch import nn

ROWS, LENGTH, WORDS, WIDTH = 8, 5, 13, 10


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """Loops, branches and ties: what only a scripted module, not a traced one, keeps."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)
        self.head.weight = self.table.weight
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("offset", torch.linspace(-1, 1, WORDS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens).cumsum(1)
        for layer in self.layers:
            x = layer(x)
        out = self.head(x) * self.scale
        if tokens.size(0) > 1:
            out = out + self.offset
        return out


class Data(nn.Module):
    """Tensors in a form that C++ loads as well."""

    def __init__(self, tokens, targets):
        super().__init__()
        self.register_buffer("tokens", tokens)
        self.register_buffer("targets", targets)

    def forward(self):
        return self.tokens


def train(model, tokens, targets):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for x, y in zip(tokens, targets):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def export(folder, dtype, steps):
    torch.manual_seed(11)
    model = torch.jit.script(Model().to(dtype))
    tokens = torch.randint(WORDS, (steps, ROWS, LENGTH))
    targets = torch.randn(steps, ROWS, LENGTH, WORDS, dtype=dtype)
    model.save(folder / "model.pt")
    torch.jit.script(Data(tokens, targets)).save(folder / "data.pt")
    losses = train(model, tokens, targets)
    torch.save({"state": dict(model.state_dict()), "outputs": model(tokens[0]).detach(),
                "losses": torch.tensor(losses, dtype=torch.double), "tokens": tokens[0]},
               folder / "reference.pt")  # fmt: skip


def require_close(name, actual, expected, tolerance):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, name
    worst = ((actual - expected).abs() / expected.abs().clamp(min=1)).max().item()
    assert worst <= tolerance, f"{name}: off by {worst}"


def check(folder, tolerance):
    reference = torch.load(folder / "reference.pt")
    results = torch.load(folder / "results.pt", weights_only=False)  # the test's own file
    trained = torch.jit.load(folder / "trained.pt")
    state = trained.state_dict()
    assert list(state) == list(reference["state"])
    for name, expected in reference["state"].items():
        require_close(name, state[name], expected, tolerance)
    require_close("losses", results["losses"], reference["losses"], tolerance)
    outputs = trained(reference["tokens"])
    require_close("outputs", outputs.detach(), reference["outputs"], tolerance)
    require_close("outputs here and there", outputs.detach(), results["outputs"], 0.0)
    # It is a module like any other: it can be trained on.
    outputs.sum().backward()
    assert all(parameter.grad is not None for parameter in trained.parameters())


def verdict(folder, tolerance):
    try:
        check(folder, tolerance)
    except Exception as error:  # whatever a bad file makes torch raise
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return "equal"


def pairs(words):
    return [(Path(first), second) for first, second in zip(words[::2], words[1::2], strict=True)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "export":
        for place, name in pairs(sys.argv[3:]):
            export(place, getattr(torch, name), int(sys.argv[2]))
    else:
        for place, allowed in pairs(sys.argv[2:]):
            print(verdict(place, float(allowed)))

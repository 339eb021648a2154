#!/usr/bin/env python3
"""Runs ONNX models with scrimp and with ONNX Runtime: outputs, peaks and times side by side.

    pip install onnx onnxruntime onnxscript torch torchvision timm transformers
    benches/inference.py [--scrimp target/release/scrimp] [--threads 2] [--light] [MODEL ...]

The models are the light ones of the `onnx` package (`--light` runs only these), whose weights, all equal in
the files, are drawn at random here, and whose softmax at the end is left out, and ten exports of torchvision,
timm and transformers, with random weights: all at batch 1, in inference mode. Each run is a process of its
own. The columns:

- weights: bytes of all initializers.
- off by: the largest difference of an output of scrimp's from ONNX Runtime's, over the largest output.
- peak, ONNX Runtime: the most physical memory of its process, less what it has after the imports. scrimp's:
  of the whole process, planning included.
- arena: what scrimp reserves, weights included, at `--budget 100%`, `min`, and `min` with weights and values
  in a file (`--swap disk`).
- ms: the median of five runs (of ONNX Runtime's without the first).
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings

import numpy

LIGHT = "light_"
EXPORTS = {
    "torchvision": ["resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_tiny"],
    "timm": ["vit_tiny_patch16_224", "mobilenetv4_conv_small", "mixer_s32_224"],
    "transformers": ["gpt2", "bert", "distilbert"],
}
RUNS = 5
SEARCH = "3s"

RUNTIME = """
import json, sys, time
import numpy, onnxruntime
path, inputs, outputs, threads, runs = sys.argv[1:]
def status(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
before = status("VmRSS:")
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(threads)
options.log_severity_level = 3
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
given = dict(numpy.load(inputs))
times = []
for _ in range(int(runs)):
    start = time.perf_counter()
    made = session.run(None, given)
    times.append(time.perf_counter() - start)
peak = status("VmHWM:")
numpy.savez(outputs, *made)
print(json.dumps(dict(peak=peak - before, seconds=sorted(times[1:])[len(times[1:]) // 2])))
"""


def drawn(path, target):
    """A light model with random weights in place of equal ones; returns its inputs."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    graph, random = model.graph, numpy.random.default_rng(0)
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    readers = {name: (node.op_type, i) for node in graph.node for i, name in enumerate(node.input)}
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        name, shape = node.output[0], shapes[node.input[0]]
        op, place = readers.get(name, ("", 0))
        fan = int(numpy.prod(shape[1:])) if len(shape) > 1 else 1
        values = random.standard_normal(shape, dtype=numpy.float32) * numpy.float32((2 / fan) ** 0.5)
        if op == "BatchNormalization":
            values = values * numpy.float32(0.1) + (place in (1, 4))
        elif len(shape) < 2:
            values = values * numpy.float32(0.1)
        graph.initializer.append(numpy_helper.from_array(numpy.abs(values) if place == 4 else values, name))
    if kept[-1].op_type == "Softmax":
        graph.output[0].name = kept.pop().input[0]
    del graph.node[:]
    graph.node.extend(kept)
    onnx.save(model, target)
    names = {t.name for t in graph.initializer}
    inputs = {}
    for value in graph.input:
        if value.name not in names:
            shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
            inputs[value.name] = random.standard_normal(shape, dtype=numpy.float32)
    return inputs


def exported(library, name, target):
    """A model that PyTorch exports; returns its inputs."""
    import torch

    torch.manual_seed(0)
    if library == "torchvision":
        import torchvision

        model, x = getattr(torchvision.models, name)(weights=None), torch.randn(1, 3, 224, 224)
    elif library == "timm":
        import timm

        model, x = timm.create_model(name, pretrained=False), torch.randn(1, 3, 224, 224)
    else:
        model, x = language(name), torch.randint(3, 1000, (1, 64))
    for parameter in model.parameters():
        # A head that starts at zero would hide everything before it.
        if parameter.dim() > 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    model.eval()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(
            model, (x,), target, dynamo=True, external_data=False, verbose=False, input_names=["x"]
        )
    return {"x": x.numpy()}


def language(name):
    """A model of words, of its usual size."""
    import torch
    import transformers as t

    class Logits(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(input_ids=x)[0]

    make = {
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)),
        "bert": lambda: t.BertForSequenceClassification(t.BertConfig()),
        "distilbert": lambda: t.DistilBertForSequenceClassification(t.DistilBertConfig()),
    }
    return Logits(make[name]())


def scrimp(binary, path, inputs, threads, *more):
    """What the command answers."""
    command = [binary, "run", path, "--inputs", inputs, "--threads", str(threads), "--time-limit", SEARCH]
    command += ["--json", "--quiet", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise RuntimeError(answer["error"]["message"])
    return answer


def row(name, path, given, arguments, folder):
    """Cells of the table."""
    import onnx

    parts = ("one", "many", "theirs", "ours")
    inputs, many, theirs, ours = (os.path.join(folder, f"{part}.npz") for part in parts)
    numpy.savez(inputs, **given)
    numpy.savez(many, **{key: numpy.concatenate([value] * RUNS) for key, value in given.items()})
    weights = sum(
        numpy.prod(t.dims) * onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize
        for t in onnx.load(path).graph.initializer
    )
    threads = arguments.threads
    command = [sys.executable, "-c", RUNTIME, path, inputs, theirs, str(threads), str(RUNS)]
    runtime = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    wanted = list(numpy.load(theirs).values())
    cells = [name, f"{weights / 1e6:.1f}"]
    file = f"disk:{os.path.dirname(folder)}=4GB"
    tries = [["--budget", "100%"], ["--budget", "min"], ["--budget", "min", "--swap", file]]
    answers, off = [], 0.0
    for more in tries:
        answer = scrimp(arguments.scrimp, path, inputs, threads, "--outputs", ours, *more)
        made = list(numpy.load(ours).values())
        for a, b in zip(made, wanted, strict=True):
            off = max(off, float(numpy.abs(a - b).max() / max(numpy.abs(b).max(), 1e-30)))
        timed = scrimp(arguments.scrimp, path, many, threads, *more)
        answers.append(answer | {"batch_seconds": timed["batch_seconds"]})
    cells += [f"{off:.0e}", f"{runtime['peak'] / 1e6:.0f}"]
    cells += [f"{answer['process_peak_bytes'] / 1e6:.0f}" for answer in answers[::2]]
    cells += [f"{answer['allocated_bytes'] / 1e6:.1f}" for answer in answers]
    cells += [f"{runtime['seconds'] * 1e3:.1f}"]
    cells += [f"{answer['batch_seconds'] * 1e3:.1f}" for answer in answers]
    return cells


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scrimp", default="target/release/scrimp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--light", action="store_true")
    parser.add_argument("models", nargs="*")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    import onnx

    light = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "light")
    models = [("onnx", file[:-5]) for file in sorted(os.listdir(light)) if file.endswith(".onnx")]
    if not arguments.light:
        models += [(library, name) for library, names in EXPORTS.items() for name in names]
    print(
        "| model | weights, MB | off by | peak, MB: ONNX Runtime | scrimp | with a file | arena, MB: 100 % "
        "| min | with a file | ms: ONNX Runtime | 100 % | min | with a file |"
    )
    print("|" + "---|" * 13)
    for library, name in models:
        if arguments.models and name not in arguments.models:
            continue
        with tempfile.TemporaryDirectory(dir=os.environ.get("SCRIMP_FOLDER")) as folder:
            path = os.path.join(folder, "model.onnx")
            try:
                if name.startswith(LIGHT):
                    given = drawn(os.path.join(light, f"{name}.onnx"), path)
                else:
                    given = exported(library, name, path)
                cells = row(name, path, given, arguments, folder)
            except RuntimeError as error:
                cells = [name, str(error)]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

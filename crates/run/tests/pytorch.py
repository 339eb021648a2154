"""Gradients of three networks by PyTorch, for tests/pytorch.rs: `pytorch.py NETWORK FOLDER`.

FOLDER/in.txt has one line per tensor, `name dtype length,length,.. offset`; FOLDER/in.bin their bytes.
The loss and the gradient of every parameter go to out.txt and out.bin in the same form.
"""

import ctypes
import sys

import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64}


def read(folder):
    data = bytearray(open(f"{folder}/in.bin", "rb").read())
    tensors = {}
    for line in open(f"{folder}/in.txt"):
        name, dtype, shape, offset = line.rstrip("\n").split(" ")
        shape = [int(n) for n in shape.split(",") if n]
        count = 1
        for n in shape:
            count *= n
        flat = torch.frombuffer(data, dtype=DTYPES[dtype], count=count, offset=int(offset))
        tensors[name] = flat.reshape(shape).clone()
    return tensors


def resnet18(p, x):
    def conv_bn(x, conv, bn, stride, pad):
        x = F.conv2d(x, p[conv + ".weight"], None, stride, pad)
        return F.batch_norm(x, None, None, p[bn + ".weight"], p[bn + ".bias"], True, 0.1, 1e-5)

    x = F.relu(conv_bn(x, "conv1", "bn1", 2, 3))
    x = F.max_pool2d(x, 3, 2, 1)
    for stage in range(1, 5):
        for block in range(2):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = F.relu(conv_bn(x, name + ".conv1", name + ".bn1", stride, 1))
            y = conv_bn(y, name + ".conv2", name + ".bn2", 1, 1)
            if stride == 2:
                x = conv_bn(x, name + ".downsample.0", name + ".downsample.1", 2, 0)
            x = F.relu(x + y)
    return F.linear(x.mean((2, 3)), p["fc.weight"], p["fc.bias"])


def unet(p, x):
    image = x

    def block(x, name, stride):
        for number, stride in ((1, stride), (2, 1)):
            x = F.conv2d(x, p[f"{name}.conv{number}.weight"], p[f"{name}.conv{number}.bias"], stride, 1)
            x = F.instance_norm(x, weight=p[f"{name}.norm{number}.weight"], bias=p[f"{name}.norm{number}.bias"])
            x = F.leaky_relu(x, 0.01)
        return x

    def up(x, name):
        return F.conv_transpose2d(x, p[name + ".up.weight"], p.get(name + ".up.bias"), 2)

    skips = [block(x, "block0", 2)]
    skips.append(block(skips[0], "block1", 2))
    x = up(block(skips[1], "block2", 2), "block2")
    for name, skip in (("block3", skips[1]), ("block4", skips[0])):
        x = up(block(torch.cat([x, skip], 1), name, 1), name)
    return F.conv2d(torch.cat([x, image], 1), p["block5.conv.weight"], p["block5.conv.bias"], 1, 1)


def transformer(p, tokens, heads=4):
    batch, sequence = tokens.shape
    x = p["wte.weight"][tokens] + p["wpe.weight"]
    width = x.shape[2]

    def dense(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    def norm(x, name):
        return F.layer_norm(x, [width], p[name + ".weight"], p[name + ".bias"], 1e-5)

    layers = len({name.split(".")[1] for name in p if name.startswith("h.")})
    for layer in range(layers):
        name = f"h.{layer}"
        qkv = dense(norm(x, name + ".ln_1"), name + ".attn.c_attn").split(width, 2)
        q, k, v = (t.reshape(batch, sequence, heads, -1).transpose(1, 2) for t in qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, sequence, width)
        x = x + dense(y, name + ".attn.c_proj")
        y = dense(norm(x, name + ".ln_2"), name + ".mlp.c_fc")
        x = x + dense(F.gelu(y, approximate="tanh"), name + ".mlp.c_proj")
    return norm(x, "ln_f").reshape(batch * sequence, width) @ p["wte.weight"].T


def main(network, folder):
    tensors = read(folder)
    labels = tensors.pop("labels")
    x = tensors.pop("tokens" if network == "transformer" else "input")
    for tensor in tensors.values():
        tensor.requires_grad_()
    loss = F.cross_entropy(globals()[network](tensors, x), labels)
    loss.backward()
    offset = 0
    with open(f"{folder}/out.txt", "w") as index, open(f"{folder}/out.bin", "wb") as data:
        results = {"loss": loss.detach(), **{name: t.grad for name, t in tensors.items()}}
        for name, tensor in results.items():
            tensor = tensor.to(torch.float64).contiguous()
            index.write(f"{name} f64 {','.join(str(n) for n in tensor.shape)} {offset}\n")
            data.write(ctypes.string_at(tensor.data_ptr(), 8 * tensor.numel()))
            offset += 8 * tensor.numel()


main(*sys.argv[1:])

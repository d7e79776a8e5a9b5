"""The ways themselves; see damage.py."""

import json
import math
import os

import torch
from damage import E4M3, INDEX, spoilt_json, way

# --- Tensors ---


@way("lint")
def tensor_left_out(spot):
    layer = spot.layer(dense=True)
    return spot.put(layer[spot.draw.choice(sorted(layer))], None)


@way("lint")
def tensor_renamed(spot):
    layer = spot.layer(dense=True)
    name = layer[spot.draw.choice(sorted(layer))]
    other = name[:-1] + spot.draw.choice("xS_")
    spot.rename(name, other)
    return [name, other]


@way("lint")
def weight_dtype(spot):
    name = spot.layer()["weight"]
    dtype = spot.draw.choice([torch.int8, torch.float16, torch.int32, torch.bool])
    return spot.put(name, spot.read(name).to(dtype))


@way("lint")
def scale_dtype(spot):
    name = spot.layer()["weight_scale"]
    dtype = spot.draw.choice([torch.uint8, torch.bfloat16, torch.float8_e5m2, torch.float32])
    return spot.put(name, spot.read(name).float().to(dtype))


@way("lint")
def global_dtype(spot):
    layer = spot.layer()
    name = layer[spot.draw.choice(sorted({"weight_scale_2", "input_scale"} & layer.keys()))]
    dtype = spot.draw.choice([torch.float16, torch.float64, torch.int64, torch.bfloat16])
    return spot.put(name, spot.read(name).to(dtype))


@way("lint")
def weight_shape(spot):
    name = spot.layer()["weight"]
    codes = spot.read(name)
    shapes = [
        codes[..., :-1], codes[..., :-1, :], codes[..., :0], codes[..., :0, :], codes.flatten(),
        codes[None, None], codes.transpose(-1, -2), codes[..., : codes.shape[-1] // 2],
    ]  # fmt: skip
    shapes = [shape for shape in shapes if shape.shape != codes.shape]  # a square one, transposed
    spot.put(name, spot.draw.choice(shapes).contiguous())
    return [name, name.replace("weight_packed", "weight") + "_scale", name + "_weight_scale"]


@way("lint")
def scale_shape(spot):
    name = spot.layer()["weight_scale"]
    scales = spot.read(name).view(torch.uint8)
    shapes = [
        scales[..., :-1], scales[..., :-1, :], scales.flatten(), scales[..., :1], scales[..., :0],
        torch.cat([scales, scales], -1), torch.nn.functional.pad(scales, (0, 0, 0, 128)),
    ]  # fmt: skip
    return spot.put(name, spot.draw.choice(shapes).contiguous().view(E4M3))


@way("lint")
def global_shape(spot):
    layer = spot.layer()
    name = layer[spot.draw.choice(sorted({"weight_scale_2", "input_scale"} & layer.keys()))]
    return spot.put(name, torch.ones(spot.draw.choice([(0,), (3,), (1, 1, 1, 1), (7, 2)])))


BAD = [math.nan, math.inf, -math.inf, 0.0, -0.0, -1e-3]


@way("lint")
def global_value(spot):
    layer = spot.layer()
    name = layer[spot.draw.choice(sorted({"weight_scale_2", "input_scale"} & layer.keys()))]
    values = spot.read(name).clone()
    values.view(-1)[spot.draw.randrange(values.numel())] = spot.draw.choice(BAD)
    return spot.put(name, values)


@way("lint")
def unknown_tensor(spot):
    weight = spot.layer(dense=True)["weight"]
    part = spot.draw.choice(["weight_zero_point", "g_idx", "svdquant_lora_a", "weight_scale_inv"])
    return spot.put(f"{weight.rpartition('.')[0]}.{part}", torch.ones(4), like=weight)


@way("lint")
def unquantised_among_scales(spot):
    name = spot.layer(dense=True)["weight"]
    codes = spot.read(name)
    spot.put(name, None)
    plain = name.replace("weight_packed", "weight")
    spot.put(plain, torch.zeros(codes.shape[0], 2 * codes.shape[1]), next(iter(spot.map)))
    return [name, plain]


@way("lint")
def codes_without_scales(spot):
    return spot.put("lm_head.weight", torch.zeros(128, 32, dtype=torch.uint8)) + ["lm_head."]


@way("lint")
def bias_shape(spot):
    weight = spot.layer(dense=True)["weight"]
    rows = len(spot.read(weight))
    name = f"{weight.rpartition('.')[0]}.bias"
    return spot.put(name, torch.zeros(rows + spot.draw.choice([-1, 1])), like=weight)


@way("load")
def plain_tensor_left_out(spot):
    return spot.put(spot.draw.choice(["model.norm.weight", "model.embed_tokens.weight"]), None)


@way("load")
def plain_tensor_shape(spot):
    name = spot.draw.choice(["model.norm.weight", "model.embed_tokens.weight", "lm_head.weight"])
    return spot.put(name, spot.read(name)[:-1])


@way("load")
def plain_tensor_dtype(spot):
    name = spot.draw.choice(["model.norm.weight", "model.embed_tokens.weight"])
    return spot.put(name, spot.read(name).to(spot.draw.choice([torch.int32, torch.bool])))


@way("load")
def not_in_the_model(spot):
    name = spot.draw.choice(["model.extra.weight", "model.layers.2.mlp.x", "..", "weight", "model"])
    return spot.put(name, torch.zeros(3), like="model.norm.weight")


@way("load")
def layer_left_out(spot):
    layer = spot.layer()
    for name in layer.values():
        spot.put(name, None)
    head = layer["weight"].rpartition(".")[0]
    return [head, head[: head.find("experts") + 7] if "experts" in head else head]


@way("load")
def rows_of_another_model(spot):
    layer = spot.layer()
    for part in ("weight", "weight_scale"):
        tensor = spot.read(layer[part]).view(torch.uint8)
        tensor = torch.cat([tensor, tensor], -2)
        spot.put(layer[part], tensor.view(E4M3) if part == "weight_scale" else tensor)
    head = layer["weight"].rpartition(".")[0]
    return [head, head[: head.find("experts") + 7] if "experts" in head else head]


# --- Configuration ---


@way("lint", "files")
def quant_method(spot):
    value = spot.draw.choice(["gptq", "mxfp4", "fp8", None, 3, ["modelopt"], {"a": 1}])
    spot.config(lambda config: config.update(quant_method=value))
    return ["quant_method"]


@way("lint", "files")
def quant_algo(spot):
    value = spot.draw.choice(["FP8", "NVFP4_X", "W4A8_NVFP4_FP8", "MXFP4", "", None, ["NVFP4"]])
    modelopt = dict(quant_method="modelopt", quant_algo=value)
    spot.config(lambda config: config.update(modelopt))
    return ["quant_algo"]


@way("lint", "files")
def config_group(spot):
    def change(config):
        config.update(quant_method="compressed-tensors", format="nvfp4-pack-quantized")
        weights = dict(num_bits=4, type="float", strategy="tensor_group", group_size=16)
        key, value = spot.draw.choice(
            [("num_bits", 8), ("type", "int"), ("strategy", "channel"), ("group_size", 32),
             ("num_bits", [4]), ("scale_dtype", "torch.uint8"), ("symmetric", {})]
        )  # fmt: skip
        config["config_groups"] = {"group_0": {"weights": weights | {key: value}}}

    spot.config(change)
    return ["config_groups"]


@way("lint", "files")
def config_type(spot):
    key = spot.draw.choice(["ignore", "config_groups", "format"])

    def change(config):
        config.update(quant_method="compressed-tensors")
        config[key] = spot.draw.choice([3, "x", True, {"a": "b"}, [[]]])

    spot.config(change)
    return [key, "config_groups"]  # ModelOpt's are not compressed-tensors'


@way("lint", "files")
def quantization_type(spot):
    value = spot.draw.choice([3, "modelopt", ["modelopt"], True])
    return spot.write_json("config.json", {"quantization_config": value})


@way("lint", "files")
def json_spoilt(spot):
    file = spot.draw.choice(["config.json", INDEX])
    good = (spot.directory / file).read_bytes()
    return spot.write_json(file, spoilt_json(spot.draw, good))


@way("lint", "files")
def json_no_file(spot):
    path = spot.directory / spot.draw.choice(["config.json", INDEX])
    path.unlink()
    make = [path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(path.name)]
    spot.draw.choice(make)()
    return [path.name]


# --- Index ---


@way("lint", "files")
def shard_elsewhere(spot):
    name = spot.draw.choice(sorted(spot.map))
    shard = spot.map[name]
    spot.map[name] = spot.draw.choice(
        [f"../{spot.directory.name}/{shard}", f"./{shard}", "/etc/passwd", "..", "", "/dev/zero",
         str(spot.directory / shard), "a\\b.safetensors", "x.bin", "\0.safetensors",
         "~/x.safetensors", "n" * 5000 + ".safetensors", 7, None, [shard], {"a": shard}]
    )  # fmt: skip
    return spot.write_json(INDEX, spot.index)


@way("lint", "files")
def index_disagrees(spot):
    name = spot.draw.choice(sorted(spot.map))
    others = sorted({*spot.map.values()} - {spot.map[name]})
    where = spot.draw.choice([*others, "model-00009-of-00003.safetensors"])
    spot.map[spot.draw.choice([name, f"{name}.more"])] = where
    spot.write_json(INDEX, spot.index)
    return [where]


@way("lint", "files")
def index_type(spot):
    content = spot.draw.choice([{}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": None}])
    return spot.write_json(INDEX, content)


@way("lint", "files")
def tensor_in_two_shards(spot):
    shard = spot.shard()
    copy = "model-00000-of-00003.safetensors"
    (spot.directory / copy).write_bytes(shard.read_bytes())
    spot.map["lm_head.weight"] = copy
    spot.map["more"] = copy
    spot.write_json(INDEX, spot.index)
    return [copy, shard.name]


@way("lint", "files")
def a_second_checkpoint(spot):
    (spot.directory / "model.safetensors").write_bytes(spot.shard().read_bytes())
    return ["model.safetensors"]


# --- Shards ---


@way("lint", "files")
def shard_left_out(spot):
    return spot.instead(lambda path: None)


@way("lint", "files")
def shard_no_file(spot):
    make = [
        lambda p: p.symlink_to(p.name), lambda p: p.mkdir(), os.mkfifo,
        lambda p: p.symlink_to("nowhere"), lambda p: p.symlink_to("/dev/zero"),
        lambda p: p.write_bytes(b""),
    ]  # fmt: skip
    return spot.instead(spot.draw.choice(make))


@way("lint", "files")
def shard_length(spot):
    path = spot.shard()
    data = path.read_bytes()
    cut = spot.draw.choice([spot.draw.randrange(len(data)), 7, 8, 9, len(data) - 1])
    path.write_bytes(spot.draw.choice([data[:cut], data + b"\0", data + data]))
    return [path.name]


@way("lint", "files")
def header_length(spot):
    path = spot.shard()
    data = path.read_bytes()
    length = spot.draw.choice([0, 1, 2**63, 2**64 - 1, len(data), len(data) * 2, 100_000_001])
    path.write_bytes(length.to_bytes(8, "little") + data[8:])
    return [path.name]


@way("lint", "files")
def header_json(spot):
    return spot.header(lambda header: spoilt_json(spot.draw, json.dumps(header).encode()))


@way("lint", "files")
def header_offsets(spot):
    def change(header):
        offsets = header[spot.entry(header)]["data_offsets"]
        begin, end = offsets
        offsets[:] = spot.draw.choice(
            [(begin, end + 1), (begin + 1, end + 1), (end, begin), (0, end - begin - 1),
             (begin, 2**63), (2**63, 2**63 + end - begin), (-1, end), (begin, "x"), ()]
        )  # fmt: skip

    return spot.header(change)


@way("lint", "files")
def header_entry(spot):
    def change(header):
        entry = header[spot.entry(header)]
        key, value = spot.draw.choice(
            [("shape", [2**40, 2**40]), ("shape", [-1]), ("shape", "x"), ("shape", None),
             ("dtype", "F7"), ("dtype", 3), ("dtype", "C64"), ("dtype", "F64"),
             ("data_offsets", None), ("data_offsets", [0])]
        )  # fmt: skip
        entry[key] = value

    return spot.header(change)


@way("lint", "files")
def header_twice(spot):
    def change(header):
        name = spot.entry(header)
        once = json.dumps(header)
        return f'{once[:-1]}, "{name}": {json.dumps(header[name])}}}'.encode()

    return spot.header(change)


@way("lint", "files")
def header_overlap(spot):
    def change(header):
        header[spot.draw.choice(["x", "weight"])] = dict(header[spot.entry(header)])

    return spot.header(change)


@way("lint", "files")
def header_name(spot):
    def change(header):
        name = spot.entry(header)
        header[spot.draw.choice(["", "n" * 2000, "a\nb", "a\x1b[2J", "\x00", "\u202ea"])] = header[
            name
        ]
        del header[name]

    return spot.header(change)


@way("lint", "files")
def header_metadata(spot):
    def change(header):
        header["__metadata__"] = spot.draw.choice([3, [], {"a": 1}, {"a": {}}, "x"])

    return spot.header(change)

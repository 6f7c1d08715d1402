"""Makes PyPI's torch import on a machine without CUDA's libraries.

PyPI's torch for x86-64 Linux is built for CUDA: its shared objects name about
three gigabytes of CUDA libraries that a CPU never calls. This writes one small
library per missing name beside them. Every function answers "no CUDA device",
so torch takes its CPU paths. Where SGLang is installed, the package sgl_kernel is
replaced by sgl_kernel_cpu.py.

    cpustub.py SITE_PACKAGES
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

REPLACED = "\n\nfrom sgl_kernel import alloc_decode_kernel, alloc_extend_kernel\n"
NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
VENDOR = re.compile(r"^(cu|nccl|nv)[A-Za-z0-9_]*$")


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def function(name):
    if re.search(r"Error(String|Name)|StatusString", name):
        return f'const char *{name}(void) {{ return "no CUDA on this machine"; }}\n'
    return f"long {name}(void) {{ return {NO_DEVICE}; }}\n"


def replace_sgl_kernel(site):
    """Installs the stand-in, with the names of the operators that this SGLang looks up."""
    operators = set()
    for source in (site / "sglang").rglob("*.py"):
        text = source.read_text()
        operators |= set(re.findall(r"torch\.ops\.sgl_kernel\.(\w+_cpu)\b", text))
        if "\ndef alloc_extend_kernel(" in text and REPLACED not in text:
            source.unlink()  # the file may be another installation's too
            source.write_text(text + REPLACED)
    package = site / "sgl_kernel"
    package.mkdir(exist_ok=True)
    shutil.copy(pathlib.Path(__file__).parent / "sgl_kernel_cpu.py", package / "__init__.py")
    (package / "operators.txt").write_text("\n".join(sorted(operators)) + "\n")
    print(f"sgl_kernel: {len(operators)} operators without an implementation")


def main(site):
    replace_cuda(site)
    if (site / "sglang").is_dir():
        replace_sgl_kernel(site)


def replace_cuda(site):
    lib = site / "torch" / "lib"
    objects = [str(p) for p in sorted(lib.glob("*.so"))]
    needed = set()
    for o in objects:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", o)))
    known = output("ldconfig", "-p")
    missing = sorted(n for n in needed if not (lib / n).exists() and f"\t{n} " not in known)

    # CUDA's own libraries version their symbols with the library's name; what
    # has no version goes to the one that every object of torch names.
    holder = next(n for n in missing if n.startswith("libcudart.so"))
    wanted, defined = {}, set()
    for line in output("nm", "-D", "--defined-only", *objects).splitlines():
        if line.split():
            defined.add(line.split()[-1].partition("@")[0])
    for line in output("nm", "-D", "--undefined-only", *objects).splitlines():
        name, _, version = (line.split() or [""])[-1].partition("@")
        if name in defined:
            continue
        if version in missing:
            wanted[name] = (version, version)
        elif version == "NVSHMEM":
            wanted[name] = (next(n for n in missing if n.startswith("libnvshmem_host.so")), version)
        elif not version and VENDOR.match(name):
            wanted[name] = (holder, holder)

    with tempfile.TemporaryDirectory() as tmp:
        code, script = pathlib.Path(tmp, "stub.c"), pathlib.Path(tmp, "stub.map")
        for library in missing:
            names = sorted(n for n, (where, _) in wanted.items() if where == library)
            version = next((wanted[n][1] for n in names), library)
            code.write_text("".join(map(function, names)))
            script.write_text(f"{version} {{ *; }};\n")
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-w", str(code), "-o", str(lib / library)]
                + [f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"],
                check=True,
            )
    print(f"{len(missing)} libraries, {len(wanted)} functions that say: no device")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

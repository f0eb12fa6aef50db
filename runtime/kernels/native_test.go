package kernels

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// compile compiles C sources to a program.
func compile(t *testing.T, compiler string, arguments ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	arguments = append(arguments, "-lm", "-o", program)
	if out, err := exec.Command(compiler, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", compiler, strings.Join(arguments, " "), err, out)
	}
	return program
}

// need skips the test if a command is missing, or fails it if the environment says so.
func need(t *testing.T, command string) string {
	t.Helper()
	path, err := exec.LookPath(command)
	if err == nil {
		return path
	}
	if os.Getenv("REQUIRE_KERNELS_TOOLS") != "" {
		t.Fatalf("needs %s", command)
	}
	t.Skipf("needs %s", command)
	return ""
}

// long skips the test in short runs: C is compiled, which takes up to 20 s, and nothing of Go runs.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it compiles C for seconds")
	}
}

// program runs a command and returns what it prints.
func program(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	out, err := exec.Command(name, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// The sums are right to the bit with all instruction sets, and nothing beyond a table is read. See
// testdata/bags_test.c.
func TestSums(t *testing.T) {
	long(t)
	p := compile(t, need(t, "gcc"), "-O1", "-fsanitize=address", "-ffp-contract=off",
		"testdata/bags_test.c", "bags.c")
	t.Log(program(t, p))
}

// The same on arm64, in an emulator, with and without SVE and with vectors of several lengths.
func TestSumsArm64(t *testing.T) {
	long(t)
	qemu := need(t, "qemu-aarch64")
	p := compile(t, need(t, "aarch64-linux-gnu-gcc"), "-O2", "-static", "-ffp-contract=off",
		"testdata/bags_test.c", "bags.c")
	for _, cpu := range []string{"cortex-a72", "max,sve128=on", "max,sve256=on", "max,sve512=on",
		"max,sve2048=on"} {
		t.Logf("%s: %s", cpu, program(t, qemu, "-cpu", cpu, p))
	}
}

// The number of instructions for each row of 64 elements does not grow. Valgrind knows no AVX-512, so
// they are those of AVX2 on amd64.
func TestInstructions(t *testing.T) {
	long(t)
	valgrind, err := exec.LookPath("valgrind")
	if err != nil && os.Getenv("CI") == "true" { // fetched, not installed
		folder := strings.TrimSpace(program(t, "../../scripts/debian.sh", "valgrind"))
		t.Setenv("VALGRIND_LIB", filepath.Join(folder, "usr/libexec/valgrind"))
		valgrind = filepath.Join(folder, "usr/bin/valgrind.bin")
	} else if err != nil {
		valgrind = need(t, "valgrind")
	}
	// What was counted, and 5 % for another compiler. A third is for the row to fetch.
	most := map[form]int64{formFP32: 109, formFP16: 109, formInt8: 135, formInt4: 175}
	p := compile(t, need(t, "gcc"), "-O2", "-static", "testdata/bags_test.c", "bags.c")
	collected := regexp.MustCompile(`Collected : (\d+)`)
	count := func(argument string) int64 {
		out := program(t, valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null", p, argument)
		n, err := strconv.ParseInt(collected.FindStringSubmatch(out)[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	idle := count("none")
	for f, most := range most {
		const rows = 20_000
		got := (count(fmt.Sprint(int64(f))) - idle) / rows
		t.Logf("form %d: %d instructions a row", f, got)
		if got > most {
			t.Errorf("form %d: %d instructions a row of 64 elements, want at most %d", f, got, most)
		}
	}
}

// ort.h has the positions and the operator that the whole header has, which comes with the binding.
func TestInterface(t *testing.T) {
	dir := strings.TrimSpace(program(t, "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/yalue/onnxruntime_go"))
	text, err := os.ReadFile("ort.h")
	if err != nil {
		t.Fatal(err)
	}
	var c bytes.Buffer
	c.WriteString("#include <onnxruntime_c_api.h>\n#include <stddef.h>\n")
	c.WriteString("_Static_assert(ORT_API_VERSION == 24, \"version\");\n")
	functions := regexp.MustCompile(`F\((\w+), (\d+),`).FindAllSubmatch(text, -1)
	for _, f := range functions {
		fmt.Fprintf(&c, "_Static_assert(offsetof(OrtApi, %s) == %s * sizeof(void *), \"%s\");\n",
			f[1], f[2], f[1])
	}
	op := text[bytes.Index(text, []byte("typedef struct ort_op {")):]
	members := regexp.MustCompile(`\(?\*([A-Z]\w+)\)?[,;(]`).FindAllSubmatch(op, -1)
	for i, m := range members {
		fmt.Fprintf(&c, "_Static_assert(offsetof(OrtCustomOp, %s) == %d * sizeof(void *), \"%s\");\n",
			m[1], i+1, m[1])
	}
	fmt.Fprintf(&c, "_Static_assert(sizeof(OrtCustomOp) == %d * sizeof(void *), \"size\");\n",
		len(members)+1)
	for name, value := range map[string]string{
		"ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT": "1", "ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8": "2",
		"ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8": "3", "ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32": "6",
		"ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64": "7", "ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16": "10",
		"INPUT_OUTPUT_REQUIRED": "0", "INPUT_OUTPUT_VARIADIC": "2", "ORT_INVALID_ARGUMENT": "2",
		"OrtMemTypeDefault": "0",
	} {
		fmt.Fprintf(&c, "_Static_assert(%s == %s, \"%s\");\n", name, value, name)
	}
	c.WriteString("int main(void) { return 0; }\n")
	if len(functions) < 15 || len(members) < 25 {
		t.Fatalf("found %d functions and %d members in ort.h", len(functions), len(members))
	}
	source := filepath.Join(t.TempDir(), "interface.c")
	if err := os.WriteFile(source, c.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	compile(t, "gcc", "-I", dir, source)
}

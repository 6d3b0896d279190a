package headers

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

const root = "../../.."

// The internal flag of cuda.h has it declare every version of a function under the name that the library exports.
const nvidias = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n"

// What the shadow library declares: types, and each function of its table.
const shadows = `#include "intercept/driver/cuda_api.h"
#include "intercept/driver/shadowed.h"
#define X(symbol, name, since, stream, parameters) CUresult symbol parameters;
CUDA_SHADOWED(X)
#undef X
#define X(symbol, parameters) CUresult symbol parameters;
CUDA_CALLED(X)
`

const simulators = "#include \"e2e/simgpu/include/cuda_sim.h\"\n"

func compiler(include ...string) Compiler {
	c := Compiler{Command: cmp.Or(os.Getenv("CC"), "gcc"), Flags: []string{"-I" + root, "-w"}}
	for _, dir := range include {
		c.Flags = append(c.Flags, "-I"+dir)
	}
	return c
}

// toolkit gives the directory of an installed cuda.h. Without one there is nothing to compare with, and the test says so.
func toolkit(t *testing.T) string {
	t.Helper()
	dirs := []string{"/usr/local/cuda/include", "/usr/include"}
	if home := os.Getenv("CUDA_HOME"); home != "" {
		dirs = []string{filepath.Join(home, "include")}
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "cuda.h")); err == nil {
			return dir
		}
	}
	t.Skipf("SKIPPED, nothing was checked: no CUDA toolkit is installed here (no cuda.h in %s); CUDA_HOME names another",
		strings.Join(dirs, ", "))
	return ""
}

// What differs on purpose, from every cuda.h or from those before a version.
var explained = []struct {
	text   string
	before int
}{
	// The simulated GPU gives a caller of CUDA 11, whose union is smaller, no more than the member that it asks for.
	{"cuStreamGetAttribute: parameter 2 is enum CUlaunchAttributeID_enum", math.MaxInt},
	{"cuStreamGetAttribute: parameter 3* is union CUlaunchAttributeValue_union of 64 bytes", math.MaxInt},
	// Reserved until then.
	{".poolProps.usage at offset 32 is not there", 12080},
	{".poolProps.reserved is at offset 32, not 34", 12080},
}

func isExplained(difference string, version int) bool {
	for _, one := range explained {
		if version < one.before && strings.Contains(difference, one.text) {
			return true
		}
	}
	return false
}

func TestDeclarationsAreNVIDIAs(t *testing.T) {
	include := toolkit(t)
	for name, source := range map[string]string{"shadow": shadows, "simulated GPU": simulators} {
		t.Run(name, func(t *testing.T) {
			ours := compiler()
			macros, err := ours.IntegerMacros(source)
			must.NoError(t, err)
			mine, err := ours.Declarations(source, macros)
			must.NoError(t, err)
			theirs, err := compiler(include).Declarations(nvidias, append(macros, "CUDA_VERSION"))
			must.NoError(t, err)
			version := int(theirs.Enumerators["CUDA_VERSION"])
			t.Logf("CUDA %d: %d functions, %d types, %d values", version,
				len(mine.Functions), len(mine.Typedefs), len(mine.Enumerators))

			var missing []string
			for _, difference := range Compare(mine, theirs) {
				switch {
				case difference.Missing:
					missing = append(missing, difference.Name)
				case !isExplained(difference.String(), version):
					t.Errorf("%v", difference)
				}
			}
			if len(missing) > 0 {
				t.Logf("not checked, since this cuda.h has none of that name: %s", strings.Join(missing, ", "))
			}
			must.Greater(t, 10, len(mine.Functions)-len(missing))
		})
	}
}

// The comparison itself, against headers that differ in one thing each.
func TestCompare(t *testing.T) {
	const ours = `#include <stddef.h>
typedef enum CUresult { CU_OK = 0, CU_BAD = 7 } CUresult;
typedef struct CUctx_st *CUcontext;
typedef struct CUpart { int a; char b[4]; union { int c; void *d; } e; } CUpart;
#define CU_NUMBER 3
CUresult cuDo(CUcontext *context, size_t size, const CUpart *part);
`
	for _, tc := range []struct{ old, new, difference string }{
		{"", "", ""},
		{"typedef struct CUpart {", "typedef struct CUpart_st {", ""}, // a name that no program sees
		{"int a; char b[4]", "int renamed; char b[4]", ""},
		{"CU_BAD = 7", "CU_BAD = 8", "CU_BAD: is 8, not 7"},
		{"CU_BAD = 7", "CU_OTHER = 7", "CU_BAD: is not there"},
		{"CU_NUMBER 3", "CU_NUMBER 4", "CU_NUMBER: is 4, not 3"},
		{"size_t size", "unsigned size", "cuDo: parameter 2"},
		{"size_t size, ", "", "cuDo: * has 2 parameters, not 3"},
		{"CUcontext *context", "CUcontext context", "cuDo: parameter 1"},
		{"CUctx_st", "CUother_st", "cuDo: parameter 1** is struct CUother_st"},
		{"cuDo(", "cuDoIt(", "cuDo: is not there"},
		{"char b[4]", "char b[8]", "cuDo: parameter 3* is struct CUpart of 24 bytes, not struct CUpart of 16"},
		{"int a; char b[4];", "char b[4]; int a;", "cuDo: parameter 3*.a is at offset 4, not 0"},
		{"int c; void *d", "long c; void *d", "cuDo: parameter 3*.e.c is"},
		{"char b[4]", "char b[2], b2[2]", "cuDo: parameter 3*.b has 2 elements, not 4"},
		{"char b[4]", "struct { short one, two; } b", ""},
		{"int a;", "CUresult a;", ""},
		{"CUcontext *context", "int *context", "cuDo: parameter 1* is int, not *struct CUctx_st"},
		{"CUresult cuDo", "int not_a; CUresult cuDo", ""},
	} {
		t.Run(fmt.Sprintf("%s→%s", tc.old, tc.new), func(t *testing.T) {
			c := compiler()
			mine, err := c.Declarations(ours, []string{"CU_NUMBER"})
			must.NoError(t, err)
			theirs, err := c.Declarations(strings.Replace(ours, tc.old, tc.new, 1), []string{"CU_NUMBER"})
			must.NoError(t, err)
			differences := Compare(mine, theirs)
			if tc.difference == "" {
				must.SliceEmpty(t, differences)
				return
			}
			must.SliceNotEmpty(t, differences)
			must.StrContains(t, differences[0].String(), tc.difference)
		})
	}
}

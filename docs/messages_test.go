package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

var messageRow = regexp.MustCompile("(?m)^\\| (`[^|]*`)(?: [a-z][^|]*)? \\| ")

// messages are those in the first column of a section's table, in parts: between them is what differs.
func messages(t *testing.T, page, section string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	must.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	must.True(t, found, must.Sprintf("%s has no section %q", page, section))
	rest, _, _ = strings.Cut(rest, "\n## ")
	all := map[string][]string{}
	for _, row := range messageRow.FindAllStringSubmatch(rest, -1) {
		for _, message := range strings.Split(strings.Trim(row[1], "`"), "`, `") {
			for part := range strings.SplitSeq(message, "…") {
				if part = strings.Trim(part, " ,;:"); part != "" {
					all[message] = append(all[message], part)
				}
			}
		}
	}
	must.MapNotEmpty(t, all)
	return all
}

// literals are the texts in Go files below a folder, in which what is put together from constants is one, and those of C files.
func literals(t *testing.T, folder string) string {
	t.Helper()
	var all strings.Builder
	must.NoError(t, filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		switch filepath.Ext(path) {
		case ".go":
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				expression, ok := node.(ast.Expr)
				if text := literal(expression); ok && text != "" {
					all.WriteString(text + "\x00")
					return false
				}
				return true
			})
		case ".c", ".h":
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		}
		return nil
	}))
	return all.String()
}

// literal is the text of a literal or of a sum of some; whatever else is in it is a gap.
func literal(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); e.Kind == token.STRING && err == nil {
			return text
		}
	case *ast.BinaryExpr:
		left, right := literal(e.X), literal(e.Y)
		if e.Op != token.ADD || left+right == "" {
			return ""
		}
		if left == "" || right == "" {
			return left + "\x00" + right
		}
		return left + right
	}
	return ""
}

func module(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", path).Output()
	must.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// A message that a user searches for is one that a program writes: each stands in the sources of the program. Docker's and
// Podman's sources are not there to look in.
func TestMessages_AreInTheSources(t *testing.T) {
	var ours strings.Builder
	for _, folder := range []string{"claim", "device", "driver", "hooks", "intercept", "internal", "runtime"} {
		ours.WriteString(literals(t, filepath.Join(root, folder)))
	}
	nomad, containerd := module(t, "github.com/hashicorp/nomad"), module(t, "github.com/containerd/containerd/v2")
	var nomads, containerds string
	for _, folder := range []string{"scheduler", "client/allocrunner/taskrunner", "helper/pluginutils/loader"} {
		nomads += literals(t, filepath.Join(nomad, folder))
	}
	for _, folder := range []string{"cmd/containerd-shim-runc-v2", "core/runtime", "plugins/services/snapshots"} {
		containerds += literals(t, filepath.Join(containerd, folder))
	}
	var missing []string
	for _, c := range []struct{ page, section, sources string }{
		{"troubleshooting.md", "Messages of Tranche", ours.String()},
		{"without-nomad.md", "Errors", ours.String()},
		{"troubleshooting.md", "Messages of Nomad", nomads},
		{"troubleshooting.md", "Messages of containerd and runc", containerds + "unknown version specified"}, // the last is crun's
	} {
		for message, parts := range messages(t, c.page, c.section) {
			for _, part := range parts {
				if !strings.Contains(c.sources, part) {
					missing = append(missing, fmt.Sprintf("%s has %q, and no program writes %q", c.page, message, part))
				}
			}
		}
	}
	must.SliceEmpty(t, missing, must.Sprint(strings.Join(missing, "\n")))
}

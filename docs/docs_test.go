// Package docs tests the documentation: its links, its index, and the tests that it names.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

const root = ".."

// How long README and the map of the code may be: a reader decides at the first whether to read on, and sees the second at a
// glance.
const (
	maxReadmeLines       = 150
	maxArchitectureLines = 100
)

var (
	fence    = regexp.MustCompile("(?s)```.*?```")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInID  = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
	testName = regexp.MustCompile("`(?:[a-z0-9/]+\\.)?((?:Test|Fuzz)[A-Z]\\w*)`")
	codePath = regexp.MustCompile("`([a-z0-9]+/[a-z0-9_/.-]+)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
)

// pages are the Markdown files of the repository, relative to its root, with their text.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/design/*.md", ".github/ISSUE_TEMPLATE/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		must.NoError(t, err)
		for _, file := range files {
			content, err := os.ReadFile(file)
			must.NoError(t, err)
			name, err := filepath.Rel(root, file)
			must.NoError(t, err)
			all[name] = string(content)
		}
	}
	return all
}

// anchors are the IDs that GitHub gives the headings of a page.
func anchors(text string) map[string]bool {
	ids := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		id := notInID.ReplaceAllString(strings.ToLower(strings.TrimSpace(match[1])), "")
		ids[strings.ReplaceAll(id, " ", "-")] = true
	}
	return ids
}

var (
	affinities = regexp.MustCompile(`(?s)( +)affinity \{\n.*?\n( *)dynamic "affinity" \{\n.*?\n( *)\}\n( *)\}\n`)
	comment    = regexp.MustCompile(`(?m)^ *#.*\n| #.*`)
)

// The affinities of "Packing" are those of the example, which runs in e2e.TestPlacement.
func TestPacking_IsTheExample(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		found := affinities.FindString(string(text))
		must.NotEq(t, "", found, must.Sprint(file))
		return strings.Join(strings.Fields(comment.ReplaceAllString(found, "")), " ")
	}
	must.Eq(t, strings.Replace(read("../examples/packed.nomad.hcl"), "var.gpus", "8", 1), read("device.md"))
}

func TestLinks(t *testing.T) {
	all := pages(t)
	for page, text := range all {
		for _, match := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.HasPrefix(match[1], "https://") {
				continue
			}
			file, anchor, _ := strings.Cut(match[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			_, err := os.Stat(filepath.Join(root, target))
			must.NoError(t, err, must.Sprintf("%s links to %s", page, match[1]))
			if anchor != "" {
				must.True(t, anchors(all[target])[anchor], must.Sprintf("%s links to %s, which has no such heading", page, match[1]))
			}
		}
	}
}

// The packages have the pages and what they link to: packaging/build copies the pages at the root, the license and two folders.
func TestLinks_LeadToPackagedFiles(t *testing.T) {
	script, err := os.ReadFile(filepath.Join(root, "packaging/build"))
	must.NoError(t, err)
	must.StrContains(t, string(script), `cp -r "$tree/docs" "$tree/examples" "$tree/LICENSE" "$tree"/*.md "$documents/"`)
	packaged := regexp.MustCompile(`^(docs|examples|LICENSE|[^/]+\.md)(/|$)`)
	for page, text := range pages(t) {
		for _, match := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			file, _, _ := strings.Cut(match[1], "#")
			if strings.HasPrefix(page, ".github/") || strings.HasPrefix(match[1], "https://") || file == "" {
				continue
			}
			must.RegexMatch(t, packaged, filepath.Join(filepath.Dir(page), file), must.Sprintf("%s links to %s, which no package has", page, file))
		}
	}
}

// One version of Go builds all modules, so that an older one downloads one, and the pages name it.
func TestGoVersion(t *testing.T) {
	stated := regexp.MustCompile(`(?m)^go (.*)$`)
	content, err := os.ReadFile(filepath.Join(root, "go.mod"))
	must.NoError(t, err)
	version := stated.FindStringSubmatch(string(content))[1]
	modules := 0
	must.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && (entry.Name() == "build" || entry.Name() == ".git") {
			return filepath.SkipDir
		}
		if err != nil || entry.Name() != "go.mod" {
			return err
		}
		modules++
		content, err := os.ReadFile(path)
		must.NoError(t, err)
		must.Eq(t, version, stated.FindStringSubmatch(string(content))[1], must.Sprint(path))
		return nil
	}))
	must.Positive(t, modules)
	all := pages(t)
	for _, page := range []string{"README.md", "CONTRIBUTING.md", "docs/install.md"} {
		must.StrContains(t, all[page], "Go "+version, must.Sprint(page))
	}
	patch := regexp.MustCompile(`\bGo 1\.\d+\.\d+`)
	for page, text := range all {
		for _, named := range patch.FindAllString(text, -1) {
			must.True(t, page == "CHANGELOG.md" || named == "Go "+version, must.Sprintf("%s names %s", page, named))
		}
	}
}

func TestIndex_ListsEveryPage(t *testing.T) {
	all := pages(t)
	for page := range all {
		name, isDoc := strings.CutPrefix(page, "docs/")
		if isDoc && name != "README.md" {
			must.StrContains(t, all["docs/README.md"], "("+name+")")
		}
	}
}

func TestNamedTestsExist(t *testing.T) {
	exist := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path == filepath.Join(root, "build") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, match := range testFunc.FindAllSubmatch(content, -1) {
			exist[string(match[1])] = true
		}
		return err
	})
	must.NoError(t, err)
	for page, text := range pages(t) {
		for _, match := range testName.FindAllStringSubmatch(text, -1) {
			must.True(t, exist[match[1]] || match[1] == "TestHostile", must.Sprintf("%s names %s", page, match[1]))
		}
	}
}

func TestReadme_IsShort(t *testing.T) {
	must.Less(t, maxReadmeLines, strings.Count(pages(t)["README.md"], "\n"))
}

// TestArchitecture keeps the map of the code short, and to paths that exist.
func TestArchitecture(t *testing.T) {
	text := pages(t)["docs/architecture.md"]
	must.Less(t, maxArchitectureLines, strings.Count(text, "\n"))
	paths := codePath.FindAllStringSubmatch(text, -1)
	must.SliceNotEmpty(t, paths)
	for _, path := range paths {
		_, err := os.Stat(filepath.Join(root, path[1]))
		must.NoError(t, err)
	}
}

package install

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// TOML is edited as text, since no library writes comments and order back as they were. The parser says where things
// are, and what an edit makes is parsed again: it has to say what was meant and everything that was there before.

// tomlTree is a document as maps.
type tomlTree = map[string]any

// parseTOML reads a document into v.
func parseTOML(f *file, v any) error {
	if err := toml.Unmarshal(f.text, v); err != nil {
		return fmt.Errorf("%s is no TOML: %w; correct it first, nothing was changed", f.path, explainTOML(err))
	}
	return nil
}

func explainTOML(err error) error {
	var syntax *toml.DecodeError
	if errors.As(err, &syntax) {
		line, column := syntax.Position()
		return fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	return err
}

// findTable gives the line, counted from 0, of the header of a table.
func findTable(text string, path []string) (line int, found bool) {
	p := unstable.Parser{}
	p.Reset([]byte(text))
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind == unstable.Table && slices.Equal(keyOf(e), path) {
			return p.Shape(e.Child().Raw).Start.Line - 1, true
		}
	}
	return 0, false
}

// findKey gives the line of a setting whose value takes one line.
func findKey(text string, path []string) (line int, found bool) {
	p := unstable.Parser{}
	p.Reset([]byte(text))
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = keyOf(e)
		case unstable.KeyValue:
			if slices.Equal(slices.Concat(table, keyOf(e)), path) {
				return p.Shape(e.Value().Next().Raw).Start.Line - 1, true
			}
		}
	}
	return 0, false
}

func keyOf(e *unstable.Node) []string {
	var key []string
	for it := e.Key(); it.Next(); {
		key = append(key, string(it.Node().Data))
	}
	return key
}

// insertMarked puts marked lines below the header of a table that is there.
func insertMarked(text string, header int, lines []string) string {
	all := strings.Split(text, "\n")
	return strings.Join(slices.Insert(all, header+1, marked(lines...)...), "\n")
}

// replaceLine puts another line in the place of one, and keeps that above it.
func replaceLine(text string, line int, by string) string {
	all := strings.Split(text, "\n")
	indent := all[line][:len(all[line])-len(strings.TrimLeft(all[line], " \t"))]
	return strings.Join(slices.Replace(all, line, line+1, indent+wasMark+all[line], indent+by), "\n")
}

// setKey sets a string in a table, and says what to add to a marked block where neither the key nor the table is there.
func setKey(text string, table []string, key, value string) (after string, missing []string) {
	setting := key + " = " + quote(value)
	if line, found := findKey(text, slices.Concat(table, []string{key})); found {
		return replaceLine(text, line, setting), nil
	}
	if header, found := findTable(text, table); found {
		return insertMarked(text, header, []string{setting}), nil
	}
	return text, []string{tableHeader(table), setting}
}

// bareKey are the characters of a name that needs no quotes.
const bareKey = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// tableHeader writes a header, with quotes where they are needed.
func tableHeader(path []string) string {
	var parts []string
	for _, name := range path {
		if strings.Trim(name, bareKey) != "" || name == "" {
			name = quote(name)
		}
		parts = append(parts, name)
	}
	return "[" + strings.Join(parts, ".") + "]"
}

// quote writes a value as people do: strings in double quotes, where these need no escapes.
func quote(value any) string {
	switch v := value.(type) {
	case string:
		if !strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
			return `"` + v + `"`
		}
	case []any:
		var all []string
		for _, element := range v {
			all = append(all, quote(element))
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	var b bytes.Buffer
	_ = toml.NewEncoder(&b).Encode(map[string]any{"v": value}) // of what was read from TOML: cannot fail
	_, text, _ := strings.Cut(strings.TrimSpace(b.String()), " = ")
	return text
}

// checkEdit makes sure that an edited document says what the old one said, and what was to be set beyond that.
func checkEdit(path, before, after string, set tomlTree) error {
	expected, got := tomlTree{}, tomlTree{}
	if err := toml.Unmarshal([]byte(before), &expected); err != nil {
		return fmt.Errorf("%s is no TOML: %w", path, explainTOML(err))
	}
	merge(expected, set)
	err := toml.Unmarshal([]byte(after), &got)
	if err == nil && reflect.DeepEqual(expected, got) {
		return nil
	}
	if err == nil {
		err = errors.New("the result would say something else")
	}
	return fmt.Errorf("%s cannot be edited: %w; write the tables that hold the runtimes with headers of their own, such as "+
		"[a.b], rather than in braces or with dotted keys; nothing was changed", path, err)
}

// merge sets what from has in to.
func merge(to, from tomlTree) {
	for key, value := range from {
		below, isTree := value.(tomlTree)
		if old, ok := to[key].(tomlTree); isTree && ok {
			merge(old, below)
		} else {
			to[key] = value
		}
	}
}

// lookup finds what a path leads to, nil where nothing is there.
func lookup(tree tomlTree, path ...string) any {
	var value any = tree
	for _, key := range path {
		below, ok := value.(tomlTree)
		if !ok {
			return nil
		}
		value = below[key]
	}
	return value
}

// nest makes a tree that has a value at a path.
func nest(value any, path ...string) tomlTree {
	tree := tomlTree{path[len(path)-1]: value}
	for _, key := range slices.Backward(path[:len(path)-1]) {
		tree = tomlTree{key: tree}
	}
	return tree
}

package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tailscale/hujson"
)

// jsonObject is an object of a document that is edited: what is not touched keeps its order and its spaces.
type jsonObject struct {
	value  *hujson.Value
	fields *hujson.Object
	// indent is what a line of this object begins with, unit what each depth adds to it, both without the end of the line
	// before. Without a unit the document is all on one line.
	indent, unit string
}

func newJSONObject() *jsonObject {
	value, _ := hujson.Parse([]byte("{\n}\n"))
	return &jsonObject{value: &value, fields: value.Value.(*hujson.Object), indent: "    ", unit: "    "}
}

// parseJSONObject takes a document that has to be an object, and looks how it is indented.
func parseJSONObject(value hujson.Value) (*jsonObject, error) {
	object, ok := value.Value.(*hujson.Object)
	if !ok {
		return nil, errors.New("it is no JSON object")
	}
	o := &jsonObject{value: &value, fields: object, indent: "    ", unit: "    "}
	o.lookAtIndent()
	if !o.empty() {
		o.unit = o.indent
	}
	return o, o.check()
}

// check refuses an object that has a setting twice: which of them counts is not for us to say.
func (o *jsonObject) check() error {
	seen := map[string]bool{}
	for i := range o.fields.Members {
		name := o.name(i)
		if seen[name] {
			return fmt.Errorf("it has %q twice: take one out", name)
		}
		seen[name] = true
	}
	return nil
}

// lookAtIndent goes by the first setting: what follows the last end of a line before it.
func (o *jsonObject) lookAtIndent() {
	if o.empty() {
		return
	}
	space := string(o.fields.Members[0].Name.BeforeExtra)
	if i := strings.LastIndexByte(space, '\n'); i >= 0 {
		o.indent = space[i+1:]
	} else {
		o.indent, o.unit = "", ""
	}
}

func (o *jsonObject) name(i int) string {
	return o.fields.Members[i].Name.Value.(hujson.Literal).String()
}

func (o *jsonObject) index(name string) int {
	for i := range o.fields.Members {
		if o.name(i) == name {
			return i
		}
	}
	return -1
}

func (o *jsonObject) get(name string) *hujson.Value {
	if i := o.index(name); i >= 0 {
		return &o.fields.Members[i].Value
	}
	return nil
}

func (o *jsonObject) empty() bool  { return len(o.fields.Members) == 0 }
func (o *jsonObject) text() []byte { return o.value.Pack() }

// object gives an object in this one, and adds it where it is missing.
func (o *jsonObject) object(name string) (*jsonObject, bool, error) {
	added := o.get(name) == nil
	if added {
		o.setRaw(name, "{"+o.newline(o.indent)+"}")
	}
	value := o.get(name)
	below, ok := value.Value.(*hujson.Object)
	if !ok {
		return nil, false, fmt.Errorf("%q in it is no JSON object", name)
	}
	b := &jsonObject{value: value, fields: below, indent: o.indent + o.unit, unit: o.unit}
	b.lookAtIndent()
	return b, added, b.check()
}

// newline ends a line, where the document has more than one.
func (o *jsonObject) newline(indent string) string {
	if o.unit == "" {
		return ""
	}
	return "\n" + indent
}

// set gives a setting a value.
func (o *jsonObject) set(name string, value any) {
	text, _ := json.Marshal(value) // of strings
	if o.unit != "" {
		text, _ = json.MarshalIndent(value, o.indent, o.unit)
	}
	if old := o.get(name); old != nil && sameJSON(old.Pack(), text) {
		return
	}
	o.setRaw(name, string(text))
}

func sameJSON(a, b []byte) bool {
	minimal, err := hujson.Minimize(a)
	other, otherErr := hujson.Minimize(b)
	return err == nil && otherErr == nil && string(minimal) == string(other)
}

// setRaw gives a setting a value that is written in JSON.
func (o *jsonObject) setRaw(name, text string) {
	parsed, _ := hujson.Parse([]byte(text)) // is our own
	if i := o.index(name); i >= 0 {
		o.fields.Members[i].Value.Value = parsed.Value
		return
	}
	if o.empty() && len(o.fields.AfterExtra) == 0 {
		o.fields.AfterExtra = hujson.Extra(o.newline(strings.TrimSuffix(o.indent, o.unit)))
	}
	space := hujson.Extra(" ")
	before := hujson.Extra(o.newline(o.indent))
	if o.unit == "" && len(o.fields.Members) > 0 {
		before = space
	}
	o.fields.Members = append(o.fields.Members, hujson.ObjectMember{
		Name:  hujson.Value{BeforeExtra: before, Value: hujson.String(name)},
		Value: hujson.Value{BeforeExtra: space, Value: parsed.Value},
	})
}

func (o *jsonObject) remove(name string) {
	if i := o.index(name); i >= 0 {
		o.fields.Members = append(o.fields.Members[:i:i], o.fields.Members[i+1:]...)
	}
	if last := len(o.fields.Members) - 1; last >= 0 {
		o.fields.Members[last].Value.AfterExtra = nil // or a comma would be written after it
	} else {
		o.fields.AfterExtra = nil
	}
}

func quoteJSON(text string) string {
	b, _ := json.Marshal(text) // a string can always be written
	return string(b)
}

// Package blockcheck lets a plugin of Nomad check its own block of an agent's configuration without an agent: by its schema, as
// Nomad does, and then by whatever the plugin checks itself. It must not start anything.
package blockcheck

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// Decode turns the content of a block, as it is in JSON, into what Nomad gives the plugin: every option of the schema, with its
// default where it has one. Errors name the option.
func Decode(schema *hclspec.Spec, block map[string]any) (map[string]any, error) {
	object := schema.GetObject()
	if object == nil {
		return nil, fmt.Errorf("the schema is no object: %T", schema.GetBlock())
	}
	var names []string
	for _, option := range object.GetAttributes() {
		names = append(names, nameOf(option))
	}
	for _, name := range slices.Sorted(maps.Keys(block)) {
		if !slices.Contains(names, name) {
			slices.Sort(names)
			return nil, fmt.Errorf("there is no option %s; there are %s", name, strings.Join(names, ", "))
		}
	}
	decoded := map[string]any{}
	for key, option := range object.GetAttributes() {
		value, err := decodeOption(option, block)
		if err != nil {
			return nil, err
		}
		if value != nil {
			decoded[key] = value
		}
	}
	return decoded, nil
}

// nameOf is the name of an option in a block.
func nameOf(option *hclspec.Spec) string {
	switch of := option.GetBlock().(type) {
	case *hclspec.Spec_Attr:
		return of.Attr.GetName()
	case *hclspec.Spec_BlockValue:
		return of.BlockValue.GetName()
	case *hclspec.Spec_Default:
		return nameOf(of.Default.GetPrimary())
	}
	return ""
}

// decodeOption returns nil for an option that is not set and has no default.
func decodeOption(option *hclspec.Spec, block map[string]any) (any, error) {
	switch of := option.GetBlock().(type) {
	case *hclspec.Spec_Attr:
		name := of.Attr.GetName()
		value, set := block[name]
		if !set || value == nil {
			return nil, required(name, of.Attr.GetRequired())
		}
		converted, err := convert(of.Attr.GetType(), value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return converted, nil
	case *hclspec.Spec_BlockValue:
		name := of.BlockValue.GetName()
		value, set := block[name]
		if !set {
			return nil, required(name, of.BlockValue.GetRequired())
		}
		inner, err := single(value)
		if err == nil {
			inner, err = Decode(of.BlockValue.GetNested(), inner)
		}
		if err != nil {
			return nil, fmt.Errorf("block %s: %w", name, err)
		}
		return inner, nil
	case *hclspec.Spec_Default:
		value, err := decodeOption(of.Default.GetPrimary(), block)
		if value != nil || err != nil {
			return value, err
		}
		return decodeDefault(of.Default)
	}
	return nil, fmt.Errorf("the schema has a %T, which is not known here", option.GetBlock())
}

func required(name string, is bool) error {
	if is {
		return fmt.Errorf("the option %s is missing", name)
	}
	return nil
}

// decodeDefault decodes what the schema has in place of an option that is not set, which is an expression of HCL.
func decodeDefault(d *hclspec.Default) (any, error) {
	name := nameOf(d.GetPrimary())
	var block map[string]any
	if err := hcl.Unmarshal([]byte(name+" = "+d.GetDefault().GetLiteral().GetValue()), &block); err != nil {
		return nil, fmt.Errorf("the default of %s: %w", name, err)
	}
	return decodeOption(d.GetPrimary(), block)
}

// single is the content of a block that may be there once. HCL makes a list of the blocks of a name.
func single(value any) (map[string]any, error) {
	switch v := value.(type) {
	case map[string]any:
		return v, nil
	case []map[string]any:
		if len(v) == 1 {
			return v[0], nil
		}
	case []any:
		if len(v) == 1 {
			return single(v[0])
		}
	}
	return nil, fmt.Errorf("it must be one block, got %v", value)
}

// convert makes a value one of a type, as HCL does: numbers and truth values may be written as strings, and the reverse.
func convert(kind string, value any) (any, error) {
	switch kind {
	case "any":
		return wholeNumbers(value), nil
	case "list(string)":
		elements, ok := value.([]any)
		if !ok {
			return nil, fmt.Errorf("it must be a list of strings, got %v", value)
		}
		texts := []any{}
		for _, element := range elements {
			text, err := convert("string", element)
			if err != nil {
				return nil, err
			}
			texts = append(texts, text)
		}
		return texts, nil
	case "string":
		switch v := value.(type) {
		case string:
			return v, nil
		case bool, int, float64:
			return fmt.Sprint(v), nil
		}
	case "bool":
		if truth, err := strconv.ParseBool(fmt.Sprint(value)); err == nil {
			return truth, nil
		}
	case "number":
		if number, err := strconv.ParseFloat(fmt.Sprint(value), 64); err == nil {
			return whole(number), nil
		}
	}
	return nil, fmt.Errorf("it must be a %s, got %v", kind, value)
}

// whole is an integer where a number is one, since an option that is an integer takes no other.
func whole(number float64) any {
	if math.Trunc(number) == number && math.Abs(number) < 1<<53 {
		return int64(number)
	}
	return number
}

// wholeNumbers is a value with integers for all whole numbers in it.
func wholeNumbers(value any) any {
	switch v := value.(type) {
	case float64:
		return whole(v)
	case []any:
		for i := range v {
			v[i] = wholeNumbers(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = wholeNumbers(v[key])
		}
	}
	return value
}

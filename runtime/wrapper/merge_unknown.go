package wrapper

import (
	"encoding/json"
	"reflect"
	"strings"
	"unicode"
)

// mergeUnknownFields returns document with the change from before to after. All three are decoded JSON. The value before was
// parsed from document, which may have members that the value's type does not have. These are kept, also those of an
// array's elements as long as the elements are kept.
func mergeUnknownFields(document, before, after any) any {
	if reflect.DeepEqual(before, after) {
		return document
	}
	switch after := after.(type) {
	case map[string]any:
		if document, ok := document.(map[string]any); ok {
			return mergeObject(document, asObject(before), after)
		}
	case []any:
		document, ok1 := document.([]any)
		before, ok2 := before.([]any)
		if ok1 && ok2 && len(document) == len(before) {
			return mergeArray(document, before, after)
		}
	}
	return after
}

func asObject(value any) map[string]any {
	object, _ := value.(map[string]any)
	return object
}

func mergeObject(document, before, after map[string]any) any {
	merged := make(map[string]any, len(document))
	known, respelled := map[string]bool{}, map[string]bool{}
	for name := range after {
		known[fold(name)] = true
	}
	for name, value := range document {
		_, was := before[name]
		_, is := after[name]
		if was && !is {
			continue // taken out by the change
		}
		if !was && !is && known[fold(name)] {
			respelled[fold(name)] = true
			continue // was read under the name that it is now written by
		}
		merged[name] = value
	}
	for name, value := range after {
		if respelled[fold(name)] {
			merged[name] = value // read from several members, or from one that is not the document's of this name
			continue
		}
		was, had := before[name]
		if _, said := document[name]; !said && had && reflect.DeepEqual(was, value) {
			continue // a zero value that encoding the types has added
		}
		merged[name] = mergeUnknownFields(document[name], was, value)
	}
	return merged
}

// mergeArray returns the elements of after, those that were in before as the document has them. A container's environment
// may have a million entries, so elements are looked up in a map.
func mergeArray(document, before, after []any) any {
	places := map[string][]int{}
	for i, element := range before {
		key := keyOf(element)
		places[key] = append(places[key], i)
	}
	merged := make([]any, 0, len(after))
	for _, element := range after {
		key := keyOf(element)
		if at := places[key]; len(at) > 0 {
			places[key] = at[1:]
			element = document[at[0]]
		}
		merged = append(merged, element)
	}
	return merged
}

// keyOf returns a text that is equal for equal elements only.
func keyOf(element any) string {
	if text, ok := element.(string); ok {
		return "s" + text
	}
	encoded, err := json.Marshal(element)
	if err != nil { // what was decoded can be encoded
		panic(err)
	}
	return "j" + string(encoded)
}

// fold returns one form for all spellings of a name that encoding/json, and so runtimes in Go, treats as equal.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, name)
}

package runtime

import (
	"encoding/json"
	"reflect"
	"strings"
	"unicode"
)

// graft makes the change that leads from before to after in document. All three are decoded JSON. The document is what
// before was made from, and may hold more than it: members that our version of the spec's types does not know. They
// stay, also those of an array's elements, as long as the elements themselves do.
func graft(document, before, after any) any {
	if reflect.DeepEqual(before, after) {
		return document
	}
	switch after := after.(type) {
	case map[string]any:
		if document, ok := document.(map[string]any); ok {
			return graftObject(document, asObject(before), after)
		}
	case []any:
		document, ok1 := document.([]any)
		before, ok2 := before.([]any)
		if ok1 && ok2 && len(document) == len(before) {
			return graftArray(document, before, after)
		}
	}
	return after
}

func asObject(value any) map[string]any {
	object, _ := value.(map[string]any)
	return object
}

func graftObject(document, before, after map[string]any) any {
	grafted := make(map[string]any, len(document))
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
		grafted[name] = value
	}
	for name, value := range after {
		if respelled[fold(name)] {
			grafted[name] = value // read from several members, or from one that is not the document's of this name
			continue
		}
		was, had := before[name]
		if _, said := document[name]; !said && had && reflect.DeepEqual(was, value) {
			continue // a zero value that encoding the types has added
		}
		grafted[name] = graft(document[name], was, value)
	}
	return grafted
}

// graftArray takes the elements that were there before from the document, and new ones as they are. A container's
// environment may have a million entries, so each is looked up, not searched for.
func graftArray(document, before, after []any) any {
	places := map[string][]int{}
	for i, element := range before {
		key := keyOf(element)
		places[key] = append(places[key], i)
	}
	grafted := make([]any, 0, len(after))
	for _, element := range after {
		key := keyOf(element)
		if at := places[key]; len(at) > 0 {
			places[key] = at[1:]
			element = document[at[0]]
		}
		grafted = append(grafted, element)
	}
	return grafted
}

// keyOf is the same for elements that are equal, and for those only.
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

// fold gives all spellings of a name that encoding/json takes for the same, which are the runtimes' in Go, one form.
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

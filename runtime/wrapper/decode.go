package wrapper

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// decode parses JSON into maps and arrays. Numbers stay as they are written: a float64 cannot represent every 64-bit
// integer.
//
// An object with a member twice is an error. Of two values, runc takes parts of both and crun takes one of them, so the value
// that was checked need not be the one that the container gets.
func decode(content []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	return decodeValue(decoder)
}

func decodeValue(decoder *json.Decoder) (any, error) {
	token, err := decoder.Token()
	switch {
	case err != nil:
		return nil, err
	case token == json.Delim('{'):
		return decodeObject(decoder)
	case token == json.Delim('['):
		return decodeArray(decoder)
	}
	return token, nil
}

func decodeObject(decoder *json.Decoder) (any, error) {
	object := map[string]any{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string) // the decoder takes nothing else here
		if _, said := object[name]; said {
			return nil, fmt.Errorf("member %q is there twice, and OCI runtimes differ in which one counts; remove one", name)
		}
		if object[name], err = decodeValue(decoder); err != nil {
			return nil, err
		}
	}
	_, err := decoder.Token() // the end
	return object, err
}

func decodeArray(decoder *json.Decoder) (any, error) {
	array := []any{}
	for decoder.More() {
		element, err := decodeValue(decoder)
		if err != nil {
			return nil, err
		}
		array = append(array, element)
	}
	_, err := decoder.Token() // the end
	return array, err
}

package wrapper

import (
	"math/rand/v2"
	"testing"

	"github.com/shoenig/test/must"
)

func TestMergeUnknownFields(t *testing.T) {
	cases := []struct{ name, document, before, after, want string }{
		{"no change keeps everything", `{"a":1,"new":{"x":[1]}}`, `{"a":1}`, `{"a":1}`, `{"a":1,"new":{"x":[1]}}`},
		{"change, add and take out", `{"a":1,"b":2,"new":3}`, `{"a":1,"b":2}`, `{"a":9,"c":4}`, `{"a":9,"c":4,"new":3}`},
		{"deep", `{"l":{"a":1,"new":2}}`, `{"l":{"a":1}}`, `{"l":{"a":5}}`, `{"l":{"a":5,"new":2}}`},
		{
			"elements keep what is new in them",
			`{"m":[{"d":"/a","new":1},{"d":"/b","new":2}]}`, `{"m":[{"d":"/a"},{"d":"/b"}]}`,
			`{"m":[{"d":"/b"},{"d":"/c"}]}`, `{"m":[{"d":"/b","new":2},{"d":"/c"}]}`,
		},
		{
			"equal elements are not mixed up",
			`{"m":[{"d":"/a","new":1},{"d":"/a","new":2}]}`, `{"m":[{"d":"/a"},{"d":"/a"}]}`,
			`{"m":[{"d":"/0"},{"d":"/a"},{"d":"/a"}]}`, `{"m":[{"d":"/0"},{"d":"/a","new":1},{"d":"/a","new":2}]}`,
		},
		{"an object that was empty", `{"h":{"new":1}}`, `{}`, `{"h":{"p":[2]}}`, `{"h":{"p":[2],"new":1}}`},
		{
			"zero values that the types add",
			`{"p":{"a":1}}`, `{"p":{"a":1,"u":{"uid":0}}}`, `{"p":{"a":2,"u":{"uid":0}}}`, `{"p":{"a":2}}`,
		},
		{"null becomes an array", `{"m":null}`, `{"m":null}`, `{"m":[1]}`, `{"m":[1]}`},
		{
			"another spelling of a name that is changed",
			`{"PROCE\u017f\u017f":{"a":1},"other":{"x":1}}`, `{"process":{"a":1}}`, `{"process":{"a":2}}`,
			`{"process":{"a":2},"other":{"x":1}}`,
		},
		{
			"names that differ in nothing but their spelling", `{"m":{"a":1,"A":2}}`, `{"m":{"a":1,"A":2}}`,
			`{"m":{"a":3,"A":2}}`, `{"m":{"a":3,"A":2}}`,
		},
		{"large numbers", `{"x":1,"n":18446744073709551615}`, `{"x":1}`, `{"x":2}`, `{"x":2,"n":18446744073709551615}`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			var values [4]any
			for i, text := range []string{tc.document, tc.before, tc.after, tc.want} {
				value, err := decode([]byte(text))
				must.NoError(t, err)
				values[i] = value
			}
			must.Eq(t, values[3], mergeUnknownFields(values[0], values[1], values[2]))
		})
	}
}

// Where the document says nothing beyond before, the result is what the change made of it.
func TestMergeUnknownFields_Exact(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		before, after := randomJSON(random, 4), randomJSON(random, 4)
		must.Eq(t, after, mergeUnknownFields(before, before, after))
	}
}

func randomJSON(random *rand.Rand, depth int) any {
	switch kind := random.IntN(6); {
	case depth == 0 || kind < 2:
		return []any{nil, true, "a", "b", ""}[random.IntN(5)]
	case kind < 4:
		array := []any{}
		for range random.IntN(4) {
			array = append(array, randomJSON(random, depth-1))
		}
		return array
	default:
		object := map[string]any{}
		for range random.IntN(4) {
			object[string(rune('a'+random.IntN(3)))] = randomJSON(random, depth-1)
		}
		return object
	}
}

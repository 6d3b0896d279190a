// Package headers compares C declarations of ours with those of somebody else's header, by what the compiler makes of both:
// its debugging information has every type with its size, its fields with their offsets, and every enumerator's value.
package headers

import (
	"context"
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Unit is what one compiled piece of C declares.
type Unit struct {
	Functions   map[string]dwarf.Type
	Typedefs    map[string]dwarf.Type
	Enumerators map[string]int64
}

// Compiler is a C compiler with the flags that its inputs need.
type Compiler struct {
	Command string
	Flags   []string
}

var functionDeclaration = regexp.MustCompile(`\bCUresult\s+(cu[A-Za-z0-9_]+)\s*\(`)

// Declarations compiles a piece of C, and says what it declares. Of macros it takes those that are named.
func (c Compiler) Declarations(source string, macros []string) (*Unit, error) {
	dir, err := os.MkdirTemp("", "tranche-headers-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	expanded, err := c.run(source, "-E", "-P")
	if err != nil {
		return nil, err
	}
	// A declaration alone leaves no trace of a function; a pointer to it does.
	var functions []string
	for _, match := range functionDeclaration.FindAllStringSubmatch(expanded, -1) {
		functions = append(functions, match[1])
	}
	slices.Sort(functions)
	var checks strings.Builder
	checks.WriteString(source)
	for _, function := range slices.Compact(functions) {
		fmt.Fprintf(&checks, "__typeof__(&%s) function_%s;\n", function, function)
	}
	for _, macro := range macros {
		fmt.Fprintf(&checks, "#ifdef %s\nenum { macro_%s = %s };\n#endif\n", macro, macro, macro)
	}
	object := filepath.Join(dir, "unit.o")
	if _, err := c.run(checks.String(), "-g", "-fno-eliminate-unused-debug-types", "-c", "-o", object); err != nil {
		return nil, err
	}
	return read(object)
}

var integerMacro = regexp.MustCompile(`(?m)^#define (CU[A-Za-z0-9_]+) \(?(?:0x)?[0-9a-fA-F]+[uUlL]*\)?$`)

// IntegerMacros are the names of the macros of CUDA that a piece of C defines as plain numbers.
func (c Compiler) IntegerMacros(source string) ([]string, error) {
	defined, err := c.run(source, "-E", "-dM")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, match := range integerMacro.FindAllStringSubmatch(defined, -1) {
		names = append(names, match[1])
	}
	return names, nil
}

func (c Compiler) run(source string, args ...string) (string, error) {
	args = append(slices.Concat([]string{"-x", "c", "-std=gnu11"}, c.Flags, args), "-")
	cmd := exec.CommandContext(context.Background(), c.Command, args...)
	cmd.Stdin = strings.NewReader(source)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%v: %w: %s", cmd.Args, err, stderr.String())
	}
	return string(output), nil
}

func read(object string) (*Unit, error) {
	file, err := elf.Open(object)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := file.DWARF()
	if err != nil {
		return nil, err
	}
	unit := &Unit{map[string]dwarf.Type{}, map[string]dwarf.Type{}, map[string]int64{}}
	reader := data.Reader()
	for {
		entry, err := reader.Next()
		if err != nil || entry == nil {
			return unit, err
		}
		if err := unit.add(data, entry); err != nil {
			return nil, err
		}
	}
}

func (u *Unit) add(data *dwarf.Data, entry *dwarf.Entry) error {
	name, _ := entry.Val(dwarf.AttrName).(string)
	switch entry.Tag {
	case dwarf.TagTypedef:
		kind, err := data.Type(entry.Offset)
		u.Typedefs[name] = kind
		return err
	case dwarf.TagVariable:
		function, found := strings.CutPrefix(name, "function_")
		offset, typed := entry.Val(dwarf.AttrType).(dwarf.Offset)
		if !found || !typed {
			return nil
		}
		kind, err := data.Type(offset)
		u.Functions[function] = kind
		return err
	case dwarf.TagEnumerationType:
		kind, err := data.Type(entry.Offset)
		if err != nil {
			return err
		}
		for _, value := range kind.(*dwarf.EnumType).Val {
			u.Enumerators[strings.TrimPrefix(value.Name, "macro_")] = value.Val
		}
	}
	return nil
}

// Difference is where two units disagree, or Missing where the other one knows nothing of a name.
type Difference struct {
	Name, What string
	Missing    bool
}

func (d Difference) String() string { return d.Name + ": " + d.What }

// Compare says in what our declarations differ from theirs. Theirs may have more.
func Compare(ours, theirs *Unit) []Difference {
	c := comparison{seen: map[[2]dwarf.Type]bool{}}
	compareTypes(&c, ours.Functions, theirs.Functions)
	compareTypes(&c, ours.Typedefs, theirs.Typedefs)
	for _, name := range slices.Sorted(maps.Keys(ours.Enumerators)) {
		c.name = name
		if strings.HasSuffix(name, "_MAX") {
			continue // grows with every version
		}
		if value, found := theirs.Enumerators[name]; !found {
			c.missing()
		} else if value != ours.Enumerators[name] {
			c.differ("is %d, not %d", value, ours.Enumerators[name])
		}
	}
	return c.differences
}

func compareTypes(c *comparison, ours, theirs map[string]dwarf.Type) {
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if !strings.HasPrefix(strings.ToLower(name), "cu") {
			continue // the C library's
		}
		c.name = name
		if kind, found := theirs[name]; found {
			c.compare("", ours[name], kind)
		} else {
			c.missing()
		}
	}
}

type comparison struct {
	name        string
	seen        map[[2]dwarf.Type]bool
	differences []Difference
}

func (c *comparison) differ(format string, args ...any) {
	c.differences = append(c.differences, Difference{Name: c.name, What: fmt.Sprintf(format, args...)})
}

func (c *comparison) missing() {
	c.differences = append(c.differences, Difference{Name: c.name, What: "is not there", Missing: true})
}

// plain is a type without the names and qualifiers that make no difference to a caller.
func plain(kind dwarf.Type) dwarf.Type {
	for {
		switch k := kind.(type) {
		case *dwarf.TypedefType:
			kind = k.Type
		case *dwarf.QualType:
			kind = k.Type
		default:
			return kind
		}
	}
}

// standsFor tells whether ours is a plain type in the place of one of theirs whose insides do not matter to us, and which is
// passed in the same way: an int for an enumeration, a void for whatever is pointed to, an array for a structure of it.
func standsFor(ours, theirs dwarf.Type) bool {
	switch ours.(type) {
	case *dwarf.VoidType:
		return true
	case *dwarf.IntType, *dwarf.UintType:
		_, ok := theirs.(*dwarf.EnumType)
		return ok && ours.Size() == theirs.Size()
	case *dwarf.ArrayType:
		_, ok := theirs.(*dwarf.StructType)
		return ok && ours.Size() == theirs.Size()
	}
	return false
}

func describe(kind dwarf.Type) string {
	switch k := kind.(type) {
	case *dwarf.EnumType:
		return "enum " + k.EnumName
	case *dwarf.StructType:
		return k.Kind + " " + k.StructName
	default:
		return kind.String()
	}
}

func (c *comparison) compare(where string, ours, theirs dwarf.Type) {
	ours, theirs = plain(ours), plain(theirs)
	if c.seen[[2]dwarf.Type{ours, theirs}] {
		return
	}
	c.seen[[2]dwarf.Type{ours, theirs}] = true
	if fmt.Sprintf("%T", ours) != fmt.Sprintf("%T", theirs) {
		if !standsFor(ours, theirs) {
			c.differ("%s is %s, not %s", where, describe(theirs), describe(ours))
		}
		return
	}
	switch o := ours.(type) {
	case *dwarf.PtrType:
		c.compare(where+"*", o.Type, theirs.(*dwarf.PtrType).Type)
	case *dwarf.FuncType:
		c.functions(where, o, theirs.(*dwarf.FuncType))
	case *dwarf.StructType:
		c.structures(where, o, theirs.(*dwarf.StructType))
	case *dwarf.ArrayType:
		if t := theirs.(*dwarf.ArrayType); o.Count != t.Count {
			c.differ("%s has %d elements, not %d", where, t.Count, o.Count)
		} else {
			c.compare(where+"[]", o.Type, t.Type)
		}
	case *dwarf.EnumType:
		t := theirs.(*dwarf.EnumType)
		if o.EnumName != t.EnumName && o.EnumName != "" && t.EnumName != "" && !related(o, t) {
			c.differ("%s is %s, not %s", where, describe(t), describe(o))
		}
		c.sizes(where, o, t)
	default:
		c.sizes(where, ours, theirs)
	}
}

// related tells whether two enumerations have an enumerator in common: ours may lack the names of some, and its own.
func related(ours, theirs *dwarf.EnumType) bool {
	for _, o := range ours.Val {
		for _, t := range theirs.Val {
			if o.Name == t.Name {
				return true
			}
		}
	}
	return false
}

func (c *comparison) sizes(where string, ours, theirs dwarf.Type) {
	if ours.Size() != theirs.Size() {
		c.differ("%s is %s of %d bytes, not %s of %d", where, describe(theirs), theirs.Size(), describe(ours), ours.Size())
	}
}

func (c *comparison) functions(where string, ours, theirs *dwarf.FuncType) {
	if len(ours.ParamType) != len(theirs.ParamType) {
		c.differ("%s has %d parameters, not %d", where, len(theirs.ParamType), len(ours.ParamType))
		return
	}
	for i := range ours.ParamType {
		c.compare(fmt.Sprintf("parameter %d", i+1), ours.ParamType[i], theirs.ParamType[i])
	}
	if (ours.ReturnType == nil) != (theirs.ReturnType == nil) {
		c.differ("%s returns %v, not %v", where, theirs.ReturnType, ours.ReturnType)
	} else if ours.ReturnType != nil {
		c.compare("result", ours.ReturnType, theirs.ReturnType)
	}
}

// structures compares field by field. What is only a name with us may be anything; a field that is named differently is
// known by its place.
func (c *comparison) structures(where string, ours, theirs *dwarf.StructType) {
	if ours.Incomplete {
		if ours.StructName != theirs.StructName && theirs.StructName != "" {
			c.differ("%s is %s, not %s", where, describe(theirs), describe(ours))
		}
		return
	}
	if theirs.Incomplete {
		c.differ("%s is incomplete", where)
		return
	}
	c.sizes(where, ours, theirs)
	for _, field := range ours.Field {
		other := fieldOf(theirs, field)
		name := where + "." + field.Name
		switch {
		case other == nil:
			c.differ("%s at offset %d is not there", name, field.ByteOffset)
		case other.ByteOffset != field.ByteOffset:
			c.differ("%s is at offset %d, not %d", name, other.ByteOffset, field.ByteOffset)
		default:
			c.compare(name, field.Type, other.Type)
		}
	}
}

func fieldOf(structure *dwarf.StructType, like *dwarf.StructField) *dwarf.StructField {
	for _, field := range structure.Field {
		if field.Name == like.Name && field.Name != "" {
			return field
		}
	}
	for _, field := range structure.Field {
		if field.ByteOffset == like.ByteOffset && field.Type.Size() == like.Type.Size() {
			return field
		}
	}
	return nil
}

package cli

import "errors"

// stated is the value of a flag that may be left out and may not be empty: `--share "$SHARE"` in a script in which the variable
// is not set would otherwise be as if nothing was asked for.
type stated string

func (s *stated) Set(text string) error {
	if text == "" {
		return errors.New("it is empty; state a value, or leave the flag out")
	}
	*s = stated(text)
	return nil
}

func (s *stated) String() string { return string(*s) }

// Type is what the help calls the value unless the flag's description has another name for it.
func (s *stated) Type() string { return "string" }

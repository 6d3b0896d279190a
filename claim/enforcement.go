package claim

import "fmt"

// Enforcement is what holds a claim's programs to the claim's limit of memory.
type Enforcement string

// The values. Records leave EnforcementLibrary out, so that programs without enforcement read them.
const (
	// EnforcementLibrary is the shadow library in the container.
	EnforcementLibrary Enforcement = "library"
	// EnforcementDriver is the GPU driver, by the cgroup of the container.
	EnforcementDriver Enforcement = "driver"
	// EnforcementAuto is for configurations: the driver where it can, else the library.
	EnforcementAuto Enforcement = "auto"
)

// IsZero reports whether records leave the enforcement out.
func (e Enforcement) IsZero() bool { return e == "" || e == EnforcementLibrary }

// ParseEnforcement parses the value of a configuration; an empty text is EnforcementAuto.
func ParseEnforcement(text string) (Enforcement, error) {
	switch e := Enforcement(text); e {
	case "":
		return EnforcementAuto, nil
	case EnforcementAuto, EnforcementDriver, EnforcementLibrary:
		return e, nil
	}
	return "", fmt.Errorf("enforcement must be %q, %q or %q, got %q", EnforcementAuto, EnforcementDriver, EnforcementLibrary, text)
}

// Enforced returns what holds the claim's programs to its limit; "" if it has none.
func (c *Claim) Enforced() Enforcement {
	switch {
	case !c.Limited():
		return ""
	case c.ByDriver():
		return EnforcementDriver
	}
	return EnforcementLibrary
}

// ByDriver reports whether the GPU driver holds the claim's programs to its limit.
func (c *Claim) ByDriver() bool { return c.Limited() && c.Enforcement == EnforcementDriver }

func (c *Claim) checkEnforcement() error {
	switch {
	case c.Enforcement.IsZero():
		return nil
	case c.Enforcement != EnforcementDriver:
		return fmt.Errorf("a claim's enforcement must be %q or %q, got %q", EnforcementDriver, EnforcementLibrary, c.Enforcement)
	case c.Unlimited || !c.Mode.orSlice().Sliced():
		return fmt.Errorf("enforcement by the driver requires a limit in mode %s or %s", ModeSlice, ModeMPS)
	case c.GPUHostMemoryBytes > 0:
		return fmt.Errorf("host memory beyond the limit requires enforcement by the %s", EnforcementLibrary)
	}
	return nil
}

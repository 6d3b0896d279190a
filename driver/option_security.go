package driver

// checkSecurity checks the options that widen or narrow what separates the container from the host.
func (c *TaskConfig) checkSecurity(*Config) error { return nil }

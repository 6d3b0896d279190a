//go:build tools

// Package tools pins the programs that the end-to-end tests run but the product does not link.
package tools

import (
	_ "github.com/hashicorp/nomad"
)

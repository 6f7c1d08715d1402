package launch

import (
	"testing"

	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

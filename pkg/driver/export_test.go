package driver

import "context"

// LookAtServers is one round of the watch, for tests.
func (d *Driver) LookAtServers(ctx context.Context) { d.servers.look(ctx, d) }

package localcluster

import "runtime"

const goarch = runtime.GOARCH

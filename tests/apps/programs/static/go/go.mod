module netacc.test/echo

go 1.19

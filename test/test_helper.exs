# SPDX-License-Identifier: Apache-2.0

# Tests are full of options that nobody would want; those about the reports of them turn them on.
Application.put_env(:external_service, :on_suspicious_config, :ignore)

# PropEr comes from the system's packages, not from mix, so its beams are looked for beside OTP's own applications.
proper = Path.wildcard(Path.join([:code.root_dir(), "lib", "proper-*", "ebin"]))
Enum.each(proper, &:code.add_pathz(String.to_charlist(&1)))

excluded =
  if Code.ensure_loaded?(:proper) do
    []
  else
    IO.puts("PropEr is not installed: the property tests are left out (Debian: apt install erlang-proper).")
    [:property]
  end

ExUnit.start(exclude: excluded)

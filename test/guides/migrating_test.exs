# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Guides.MigratingTest do
  use ExternalService.Case, async: true

  alias ExternalService.Contract

  doctest ExternalService.Documents.Migrating

  @guide "guides/migrating.md"

  defp between(title), do: ~r/(?<=<!-- #{title} -->\n).*?(?=<!-- end -->)/s

  # With TABLES=write in the environment the guide gets the tables of today.
  test "the tables in the guide are what the code has" do
    if System.get_env("TABLES") == "write" do
      fill = fn {title, table}, guide -> Regex.replace(between(title), guide, table) end
      File.write!(@guide, Enum.reduce(Contract.tables(), File.read!(@guide), fill))
    end

    guide = File.read!(@guide)
    for {title, table} <- Contract.tables(), do: assert(Regex.run(between(title), guide) == [table])
  end

  test "nothing of the package is missing but what the README says is not here yet" do
    assert Contract.missing() == ["ExternalService.CircuitBreaker.Cluster"]
    assert Contract.missing(ExternalService) == []
    assert File.read!("README.md") =~ ~r/Not here yet is\s`CircuitBreaker\.Cluster`/
  end
end

defmodule MyApp.Client do
  def post("/mails", status), do: {:ok, %{status: status}}
end

defmodule ExternalService.DocumentsTest do
  use ExUnit.Case, async: true

  alias ExternalService.{Documents, Options}

  doctest ExternalService.Documents.Readme

  @documents ["README.md" | Path.wildcard("guides/*.md")]

  for document <- @documents do
    test "every Elixir example in #{document} is Elixir" do
      for block <- Documents.elixir_blocks(unquote(document)) do
        code = String.replace(block, ~r/^(iex>|\.\.\.>) ?/m, "")
        assert {:ok, _ast} = Code.string_to_quoted(code)
      end
    end
  end

  test "the module of README.md works as a supervised service" do
    [module] = Enum.filter(Documents.elixir_blocks("README.md"), &(&1 =~ "defmodule MyApp.Mail"))
    {[child], _binding} = Code.eval_string(module <> "\nchildren")
    start_supervised!(child)
    assert child.deliver(200) == {:ok, %{status: 200}}
    assert child.deliver(404) == {:ok, %{status: 404}}
    assert child.state() == :closed
    ExternalService.stop(child)
  end

  test "README.md lists every option" do
    readme = File.read!("README.md")

    for group <- Options.groups(), {option, _declared} <- Options.schema(group) do
      assert readme =~ "| `#{option}` |"
    end
  end
end

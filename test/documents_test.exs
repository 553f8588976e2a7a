defmodule MyApp.Client do
  def post("/mails", status), do: {:ok, %{status: status}}
end

defmodule ExternalService.DocumentsTest do
  use ExUnit.Case, async: true

  alias ExternalService.{Documents, Options}

  doctest ExternalService.Documents.Readme
  doctest ExternalService.Documents.Retries
  doctest ExternalService.Documents.Time
  doctest ExternalService.Documents.Fallback
  doctest ExternalService.Documents.Testing
  doctest ExternalService.Documents.UsageRules
  doctest ExternalService.Documents.Endpoints
  doctest ExternalService.Documents.Moleculer

  @documents ["README.md", "usage-rules.md" | Path.wildcard("guides/*.md")]

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

  test "the module in the documentation of ExternalService works as it stands there" do
    {:docs_v1, _, _, _, %{"en" => documentation}, _, _} = Code.fetch_docs(ExternalService)
    [module] = Regex.run(~r/^    defmodule MyApp\.Mail do.*?^    end$/ms, documentation)
    [{mail, _bytecode}] = Code.compile_string(String.replace(module, "MyApp.Mail", "MyApp.DocumentedMail"))
    start_supervised!(mail)
    assert mail.deliver(200) == {:ok, %{status: 200}}
    assert mail.deliver(404) == {:ok, %{status: 404}}
    ExternalService.stop(mail)
  end

  test "every example in a module's documentation is run by a doctest" do
    tests = "test/**/*_test.exs" |> Path.wildcard() |> Enum.map_join(&File.read!/1)

    for file <- Path.wildcard("lib/**/*.ex"), source = File.read!(file), source =~ ~r/^\s+iex>/m do
      [_, module] = Regex.run(~r/^defmodule (\S+) do/m, source)
      assert tests =~ ~r/^\s*doctest #{Regex.escape(module)}$/m, "no doctest of #{module}"
    end
  end

  test "the exported formatter settings leave the calls of a using module without parentheses" do
    {settings, _binding} = Code.eval_file(".formatter.exs")
    options = settings[:export]

    for line <- ["call fn -> :fine end", "call! [base: 1], fn -> :fine end", "call_async_stream list, fn x -> x end"] do
      assert line |> Code.format_string!(options) |> IO.iodata_to_binary() == line
    end
  end

  test "every file that README.md names for a change is there" do
    [table] = Regex.run(~r/^## I want to change.*?(?=^`c_src)/ms, File.read!("README.md"))
    named = for [_, file] <- Regex.scan(~r/`([\w\/]+\.(?:c|ex))`/, table), do: file
    assert length(named) > 20
    there = Path.wildcard("{c_src,lib,test}/**/*.{c,ex}")
    assert [] == Enum.reject(named, fn file -> Enum.any?(there, &String.ends_with?("/" <> &1, "/" <> file)) end)
  end

  test "README.md lists every option" do
    readme = File.read!("README.md")

    for group <- Options.groups(), {option, _declared} <- Options.schema(group) do
      assert readme =~ "| `#{option}` |"
    end
  end
end

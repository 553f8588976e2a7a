defmodule Mix.Tasks.ExternalService.Explain do
  @shortdoc "Says what the options of a service amount to"

  @moduledoc """
  Prints `ExternalService.explain/1` of a module that uses `ExternalService`, without starting anything.

      $ mix external_service.explain MyApp.Mail

  The project is compiled first, and its configuration is loaded, since that may hold defaults for every service.
  What is given to the module's `start_link/1` or `child_spec/1` is not known here.
  """

  use Mix.Task

  alias ExternalService.Definition

  @impl true
  def run([name]) do
    Mix.Task.run("app.config")
    Mix.shell().info(explain(service!(name), name))
  end

  def run(_arguments), do: Mix.raise("Expected the name of a module: mix external_service.explain MyApp.Mail")

  defp service!(name), do: with({:error, why} <- Definition.find(name), do: Mix.raise(why))

  # Options that only what is given at the start makes complete are an error here.
  defp explain(module, name) do
    module.__external_service__() |> Keyword.put_new(:name, module) |> ExternalService.Explanation.of(module)
  rescue
    exception -> Mix.raise("The options of #{name} alone do not start a service: #{Exception.message(exception)}")
  end
end

package icebergstream;

import java.util.Map;
import java.util.Set;
import org.apache.iceberg.spark.source.SparkTable;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LeafNode;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;

/** Checks a plan whose names Spark has resolved: all of them must be in the only catalog. */
final class AnalyzedPlanCheck extends PlanVisitor {
  private static final Set<String> SOURCES = ParsedPlanCheck.lines("sources.txt");
  private static final Set<String> CODE =
      Set.of(
          "CallMethodViaReflection", "TryReflect", "InputFileName", "InputFileBlockStart",
          "InputFileBlockLength", "PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF");

  private static final String EXECUTION = "org.apache.spark.sql.execution.";
  private static final String ICEBERG_TABLES = "org.apache.iceberg.spark.source.";

  private final String catalog;

  AnalyzedPlanCheck(String catalog) {
    this.catalog = catalog;
  }

  @Override
  void check(LogicalPlan node) {
    String kind = node.getClass().getSimpleName();
    boolean isResolved = kind.startsWith("Resolved") || kind.startsWith("Unresolved");
    // Spark's own catalog and its files are read and written by nodes of this package.
    boolean mustBeKnown =
        node instanceof LeafNode || node.getClass().getName().startsWith(EXECUTION);
    if (mustBeKnown && !isResolved && !SOURCES.contains(kind)) {
      throw refused("`" + node.nodeName() + "`");
    }
    if (node instanceof DataSourceV2Relation) {
      DataSourceV2Relation relation = (DataSourceV2Relation) node;
      // Spark leaves the catalog out when it drops what it has cached of a table.
      if (relation.catalog().isEmpty()
          && !relation.table().getClass().getName().startsWith(ICEBERG_TABLES)) {
        throw refused("`" + relation.name() + "`");
      }
    }
  }

  @Override
  void check(Expression expression) {
    if (CODE.contains(expression.getClass().getSimpleName())) {
      throw refused("`" + expression.prettyName() + "`");
    }
  }

  @Override
  void check(Object value) {
    if (value instanceof Table) {
      checkTable((Table) value);
    }
    if (value instanceof CatalogPlugin && !((CatalogPlugin) value).name().equals(catalog)) {
      throw new NotAllowedException(
          "The catalog `" + ((CatalogPlugin) value).name() + "` is not open here: use `" + catalog
              + "`.");
    }
  }

  /** Refuse tables whose owner names code, and requests that are signed for any user of the JVM. */
  private static void checkTable(Table table) {
    for (String name : table.properties().keySet()) {
      if (name.endsWith(".impl")) {
        throw new NotAllowedException(
            "The property `" + name + "` of `" + table.name() + "` names code to run.");
      }
    }
    if (table instanceof SparkTable) {
      Map<String, String> storage = ((SparkTable) table).table().io().properties();
      if ("true".equalsIgnoreCase(storage.get("s3.remote-signing-enabled"))) {
        throw new NotAllowedException(
            "The catalog signs requests to the storage of `" + table.name() + "` remotely, and "
                + "Iceberg would reuse the signatures for other callers.");
      }
    }
  }
}
